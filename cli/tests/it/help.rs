//! The help of the commands.

use std::process::Command;

use crate::retired::complaints_of_text;

const COMMANDS: [&[&str]; 16] = [
    &[],
    &["train"],
    &["train", "text"],
    &["generate"],
    &["chat"],
    &["devices"],
    &["doctor"],
    &["plugins"],
    &["plugins", "verify"],
    &["plugins", "check"],
    &["ops"],
    &["explain"],
    &["bench"],
    &["tune"],
    &["conformance"],
    &["diff"],
];

#[test]
fn command_help_has_no_retired_words() {
    for command in COMMANDS {
        let output = Command::new(env!("CARGO_BIN_EXE_meganeura"))
            .args(command)
            .arg("--help")
            .output()
            .expect("the program runs");
        assert!(output.status.success(), "{command:?}");
        let help = String::from_utf8_lossy(&output.stdout);
        let found = complaints_of_text(&command.join(" "), &help);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
