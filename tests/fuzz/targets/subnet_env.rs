//! subnet.env: an accepted file is written and read again without change.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tweed_cni::subnet_env::SubnetEnv;

fuzz_target!(|text: &str| {
    if let Ok(env) = SubnetEnv::parse(text) {
        assert_eq!(SubnetEnv::parse(&env.render()), Ok(env));
    }
});
