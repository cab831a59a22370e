//! Command `meganeura completions`: scripts for shells, and the manual page.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use clap_complete::Shell;

use super::Outcome;

const EXAMPLES: &str = "\
Examples:
  meganeura completions bash > ~/.local/share/bash-completion/completions/meganeura
  meganeura completions zsh > ~/.zfunc/_meganeura
  meganeura completions fish > ~/.config/fish/completions/meganeura.fish
  meganeura completions man > ~/.local/share/man/man1/meganeura.1";

/// Options of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Shell to complete commands in, or `man` for the manual page.
    #[arg(value_enum)]
    what: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell")]
    PowerShell,
    Zsh,
    /// Manual page, in roff.
    Man,
}

pub(crate) fn run(args: &Args, command: &mut clap::Command) -> Outcome {
    let shell = match args.what {
        Target::Bash => Shell::Bash,
        Target::Elvish => Shell::Elvish,
        Target::Fish => Shell::Fish,
        Target::PowerShell => Shell::PowerShell,
        Target::Zsh => Shell::Zsh,
        Target::Man => {
            let mut page = Vec::new();
            manual(command, &mut page)?;
            io::stdout().write_all(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    // Generates into memory first, because the generator panics if a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "meganeura", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual page, with the options of every subcommand.
fn manual(command: &clap::Command, page: &mut dyn Write) -> io::Result<()> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let whole = clap_mangen::Man::new(command.clone());
    whole.render(page)?;
    for subcommand in command.get_subcommands() {
        let name = format!("meganeura {}", subcommand.get_name());
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        let man = clap_mangen::Man::new(subcommand.clone().display_name(name));
        man.render_description_section(page)?;
        man.render_options_section(page)?;
    }
    Ok(())
}
