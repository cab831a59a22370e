//! Prints `meganeura_plugin.h`, which `plugins/abi/include` has a copy of.

fn main() {
    print!("{}", meganeura_plugin_abi::header());
}
