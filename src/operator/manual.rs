//! `tweedctl completions` and `tweedctl man`: what shells and man(1) read, generated from the
//! definitions of the command lines of both programs.

use std::fs::create_dir_all;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Arguments, Error, ExitStatus};
use crate::daemon::options;

#[derive(Debug, Args)]
pub(super) struct CompletionsOptions {
    /// Shell that reads the script
    shell: Shell,
    /// Program whose command line is completed
    #[arg(value_enum, default_value_t = Program::Tweedctl)]
    program: Program,
}

#[derive(Debug, Args)]
pub(super) struct ManOptions {
    /// Folder that gets man1 and man8, as /usr/share/man has them
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    Tweedctl,
    Tweedd,
}

impl Program {
    fn command(self) -> Command {
        match self {
            Self::Tweedctl => Arguments::command(),
            Self::Tweedd => options::command(),
        }
    }
}

pub(super) fn write_completions(
    CompletionsOptions { shell, program }: &CompletionsOptions,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let mut command = with_values(program.command());
    let name = command.get_name().to_owned();
    // The library panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut command, name, &mut script);
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitStatus::Done)
}

/// Shells offer the values that the help only mentions in its text.
fn with_values(command: Command) -> Command {
    command.mut_args(|argument| argument.hide_possible_values(false)).mut_subcommands(with_values)
}

/// Writes a page for each command of tweedctl, and one for tweedd.
pub(super) fn write_pages(ManOptions { dir }: &ManOptions) -> Result<ExitStatus, Error> {
    let failed = |folder: &Path| {
        let folder = folder.display().to_string();
        move |error| Error::Usage(format!("{folder} cannot be written: {error}"))
    };
    let [commands, daemons] = ["man1", "man8"].map(|section| dir.join(section));
    for folder in [&commands, &daemons] {
        create_dir_all(folder).map_err(failed(folder))?;
    }
    let pages = clap_mangen::generate_to(Program::Tweedctl.command(), &commands);
    pages.map_err(failed(&commands))?;
    let daemon = Man::new(Program::Tweedd.command()).section("8");
    daemon.generate_to(&daemons).map_err(failed(&daemons))?;
    Ok(ExitStatus::Done)
}
