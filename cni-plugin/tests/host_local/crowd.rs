//! Many processes at once: every address has one container at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::thread;

use serde_json::json;

use super::network::{Network, Program};

/// The addresses of a result.
fn addresses(result: &serde_json::Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn two_hundred_at_once_get_two_hundred_addresses() {
    let network =
        Network::with(&json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}));
    let all: Vec<_> = thread::scope(|scope| {
        let add = |id: usize| network.add(Program::Ours, &format!("c{id}"), "eth0").unwrap();
        let threads: Vec<_> = (0..200).map(|id| scope.spawn(move || add(id))).collect();
        threads.into_iter().flat_map(|thread| addresses(&thread.join().unwrap())).collect()
    });
    let distinct: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len(), network.held().len()), (400, 400, 400));
    thread::scope(|scope| {
        let del = |id: usize| network.del(Program::Ours, &format!("c{id}"), "eth0");
        (0..200).for_each(|id| drop(scope.spawn(move || del(id))));
    });
    assert!(network.held().is_empty());
}

/// The holder of each address; no address may have two.
#[derive(Default)]
struct Book(Mutex<HashMap<String, String>>);

impl Book {
    fn note(&self, address: &str, id: &str) {
        let before = self.0.lock().unwrap().insert(address.into(), id.into());
        assert_eq!(before, None, "{address} is also {id}'s");
    }

    fn strike(&self, address: &str) {
        self.0.lock().unwrap().remove(address);
    }
}

/// Allocates repeatedly, holds a few addresses, and frees the oldest by the other program.
fn churn(network: &Network, book: &Book, worker: usize, rounds: usize) {
    let mut held = VecDeque::new();
    let program =
        |number: usize| if number.is_multiple_of(8) { Program::Go } else { Program::Ours };
    for round in 0..rounds {
        let id = format!("w{worker}-{round}");
        let answer = network.add(program(worker + round), &id, "eth0").unwrap();
        let address = addresses(&answer).concat();
        book.note(&address, &id);
        held.push_back((id, address));
        if held.len() > 4 {
            let (id, address) = held.pop_front().unwrap();
            book.strike(&address);
            network.del(program(worker + round / 2), &id, "eth0");
        }
    }
    for (id, address) in held {
        book.strike(&address);
        network.del(Program::Ours, &id, "eth0");
    }
}

#[test]
fn ten_thousand_allocations_by_both_programs_are_never_duplicate() {
    let network = Network::with(&json!({"subnet": "10.1.0.0/25"}));
    let (network, book) = (&network, &Book::default());
    thread::scope(|scope| {
        (0..8).for_each(|worker| drop(scope.spawn(move || churn(network, book, worker, 1250))));
    });
    assert!(network.held().is_empty());
}
