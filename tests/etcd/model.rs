//! The etcd in memory, which simulations use, answers as the real one.

use std::collections::BTreeSet;
use std::fmt::Debug;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions, LeaseGrantOptions,
    LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp, WatchOptions, WatchStream,
};
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::join;
use tokio::time::timeout;
use tweed_simulation::network::Link;
use tweed_simulation::store::etcd::{Etcd, State};

use crate::fixture::server::{EtcdServer, TIMEOUT};

/// Real servers, each next to a model of its own, so that the requests wait at the same time.
const SERVERS: usize = 4;
/// To each of them.
const REQUESTS: usize = 2_500;
const KEYS: [&str; 6] = ["/t/a", "/t/aa", "/t/b", "/t/c", "/u/a", "/u/b"];
/// The last key that is written.
const END: &str = "/t/end";
const GRANTS: [i64; 4] = [11, 12, 13, 14];

/// A request, with the same random numbers for both servers.
#[derive(Clone, Debug)]
enum Ask {
    Get(&'static str, GetOptions),
    Put(&'static str, u8, PutOptions),
    Delete(&'static str, DeleteOptions),
    Txn(Txn),
    Grant(i64),
    Revoke(i64),
    TimeToLive(i64),
    Compact(i64),
}

#[tokio::test]
async fn the_model_of_etcd_answers_as_the_real_one() {
    join_all((0..SERVERS).map(|_| compare_with_a_server())).await;
}

async fn compare_with_a_server() {
    let server = EtcdServer::start().await;
    let model = Etcd::new();
    let channel = model.connect(&Link::default()).unwrap();
    let (mut real, mut modelled) =
        (server.client().await, Client::from_channel(channel, None).await.unwrap());
    let mut watches = [watch(&mut real).await, watch(&mut modelled).await];
    let [of_real, of_model] = &mut watches;
    assert_eq!(watch_nothing(of_real).await, watch_nothing(of_model).await);
    let seed: u64 = rand::random();
    let (mut dice, mut revision) = (StdRng::seed_from_u64(seed), 1);
    let requests = async {
        for number in 0..REQUESTS {
            let ask = ask(&mut dice, revision);
            let answers = [answer(&mut real, &ask).await, answer(&mut modelled, &ask).await];
            assert_eq!(answers[0], answers[1], "seed {seed}, request {number}: {ask:?}");
            revision = model.read(State::revision);
        }
        real.put(END, "", None).await.unwrap();
        modelled.put(END, "", None).await.unwrap();
    };
    let [from_real, from_model] = &mut watches;
    let ((), real, modelled) = join!(requests, events(from_real), events(from_model));
    assert_eq!(real, modelled, "seed {seed}");
    assert!(real.len() > REQUESTS / 10, "{}", real.len());
}

#[tokio::test]
async fn events_that_a_watch_has_missed_come_before_later_ones() {
    let server = EtcdServer::start().await;
    let etcd = Etcd::new();
    let channel = etcd.connect(&Link::default()).unwrap();
    let model = Client::from_channel(channel, None).await.unwrap();
    let mut found = Vec::new();
    for mut client in [server.client().await, model] {
        let put = client.put("/t/a", "missed", None).await.unwrap();
        let missed = put.header().unwrap().revision();
        let options = WatchOptions::new().with_prefix().with_start_revision(missed);
        let mut stream = client.watch("/t/", Some(options)).await.unwrap();
        let created = timeout(TIMEOUT, stream.message()).await.unwrap().unwrap().unwrap();
        assert!(created.created());
        client.put("/t/a", "later", None).await.unwrap();
        client.put(END, "", None).await.unwrap();
        found.push(events(&mut stream).await);
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].len(), 3);
}

async fn watch(client: &mut Client) -> WatchStream {
    let options = WatchOptions::new().with_prefix().with_prev_key();
    client.watch("/t/", Some(options)).await.unwrap()
}

/// The answers until that to a second watch, of no keys, on the same stream.
async fn watch_nothing(stream: &mut WatchStream) -> Vec<String> {
    stream.watch("/u", Some(WatchOptions::new().with_range("/t"))).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let answer = timeout(TIMEOUT, stream.message()).await.unwrap().unwrap().unwrap();
        let flags = (answer.created(), answer.canceled(), answer.cancel_reason());
        answers.push(format!("{} {flags:?}", answer.watch_id()));
    }
    answers
}

/// The events until the last key is written.
async fn events(stream: &mut WatchStream) -> Vec<String> {
    let mut events = Vec::new();
    loop {
        let response = timeout(TIMEOUT, stream.message()).await.unwrap().unwrap().unwrap();
        for event in response.events() {
            let (kv, is_put) = (event.kv().unwrap(), event.event_type() == EventType::Put);
            events.push(format!("{is_put} {kv:?} {:?}", event.prev_kv()));
            if kv.key() == END.as_bytes() {
                return events;
            }
        }
    }
}

fn ask(dice: &mut StdRng, revision: i64) -> Ask {
    let key = one(dice, KEYS);
    match dice.random_range(0..24) {
        0..5 => Ask::Get(key, get_options(dice, revision)),
        5..10 => Ask::Put(key, dice.random_range(0..3), put_options(dice)),
        10..12 => Ask::Delete(key, delete_options(dice)),
        12..18 => Ask::Txn(txn(dice)),
        18 => Ask::Grant(one(dice, GRANTS)),
        19 => Ask::Revoke(one(dice, GRANTS)),
        20..22 => Ask::TimeToLive(one(dice, GRANTS)),
        22 if dice.random_range(0..20) == 0 => {
            Ask::Compact((revision + dice.random_range(-5..3)).max(0))
        }
        _ => Ask::Get("/t/", GetOptions::new().with_prefix()),
    }
}

fn one<T: Copy, const N: usize>(dice: &mut StdRng, items: [T; N]) -> T {
    items[dice.random_range(0..N)]
}

fn get_options(dice: &mut StdRng, revision: i64) -> GetOptions {
    let options = GetOptions::new().with_limit(dice.random_range(0..4));
    match dice.random_range(0..8) {
        0 => options.with_prefix(),
        1 => options.with_range("/u/"),
        2 => options.with_from_key(),
        3 => options.with_prefix().with_keys_only(),
        4 => options.with_prefix().with_count_only(),
        5 => options.with_prefix().with_revision((revision - dice.random_range(0..20)).max(1)),
        6 => options.with_prefix().with_min_mod_revision(revision - 5),
        _ => options,
    }
}

fn put_options(dice: &mut StdRng) -> PutOptions {
    match dice.random_range(0..4) {
        0 => PutOptions::new().with_lease(one(dice, GRANTS)),
        1 => PutOptions::new().with_prev_key(),
        _ => PutOptions::new(),
    }
}

fn delete_options(dice: &mut StdRng) -> DeleteOptions {
    match dice.random_range(0..3) {
        0 => DeleteOptions::new().with_prefix(),
        1 => DeleteOptions::new().with_prev_key(),
        _ => DeleteOptions::new(),
    }
}

fn txn(dice: &mut StdRng) -> Txn {
    let compares: Vec<Compare> = (0..dice.random_range(0..3)).map(|_| compare(dice)).collect();
    let (success, failure) = (ops(dice), ops(dice));
    Txn::new().when(compares).and_then(success).or_else(failure)
}

fn compare(dice: &mut StdRng) -> Compare {
    let ops = [CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual];
    let (key, op, number) = (one(dice, KEYS), one(dice, ops), dice.random_range(0..30));
    match dice.random_range(0..6) {
        0 => Compare::version(key, op, number / 10),
        1 => Compare::create_revision(key, op, number),
        2 => Compare::mod_revision(key, op, number),
        3 => Compare::value(key, op, [u8::try_from(number % 3).unwrap()]),
        4 => Compare::lease(key, op, one(dice, GRANTS)),
        _ => Compare::create_revision("/t/", op, number).with_prefix(),
    }
}

/// etcd refuses a transaction that writes a key twice.
fn ops(dice: &mut StdRng) -> Vec<TxnOp> {
    let first = dice.random_range(0..KEYS.len());
    let mut ops: Vec<TxnOp> = (0..dice.random_range(0..3))
        .map(|next| {
            let (key, value) = (KEYS[(first + next) % KEYS.len()], [dice.random_range(0..3_u8)]);
            match dice.random_range(0..3) {
                0 => TxnOp::delete(key, None),
                _ => TxnOp::put(key, value, Some(put_options(dice))),
            }
        })
        .collect();
    ops.push(TxnOp::get("/t/", Some(GetOptions::new().with_prefix())));
    ops
}

async fn answer(client: &mut Client, ask: &Ask) -> String {
    match ask.clone() {
        Ask::Get(key, options) => {
            let is_keys_only = format!("{options:?}").contains("keys_only: true");
            let answer = shown(client.get(key, Some(options)).await);
            // Since etcd 3.7, an answer without values has no leases either.
            if is_keys_only { without_numbers(answer, &[", lease: "]) } else { answer }
        }
        Ask::Put(key, value, options) => shown(client.put(key, [value], Some(options)).await),
        Ask::Delete(key, options) => shown(client.delete(key, Some(options)).await),
        Ask::Txn(txn) => shown(client.txn(txn).await),
        Ask::Grant(id) => {
            shown(client.lease_grant(5000, Some(LeaseGrantOptions::new().with_id(id))).await)
        }
        Ask::Revoke(id) => shown(client.lease_revoke(id).await),
        Ask::TimeToLive(id) => {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            let answer = client.lease_time_to_live(id, Some(options)).await;
            // The clocks of both differ, and etcd has no order of keys.
            let keys = |it: &[Vec<u8>]| it.iter().cloned().collect::<BTreeSet<_>>();
            shown(answer.map(|it| (it.id(), it.granted_ttl(), it.ttl() > 0, keys(it.keys()))))
        }
        Ask::Compact(revision) => shown(client.compact(revision, None).await),
    }
}

/// The answer without what names the server.
fn shown<T: Debug>(answer: Result<T, Error>) -> String {
    let text = match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(Error::GRpcStatus(status)) => format!("{:?} {}", status.code(), status.message()),
        Err(error) => panic!("{error}"),
    };
    without_numbers(text, &["cluster_id: ", "member_id: ", "raft_term: "])
}

/// Removes the number after each of these names.
fn without_numbers(text: String, names: &[&str]) -> String {
    names.iter().fold(text, |text, name| {
        let mut parts = text.split(name);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            text + name + part.trim_start_matches(|digit: char| digit.is_ascii_digit())
        })
    })
}
