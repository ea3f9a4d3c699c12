//! Our own applications on the server: everything of each of them is in its folder.

#[cfg(feature = "genesis")]
mod genesis;
#[cfg(feature = "hive")]
mod hive;
#[cfg(feature = "market")]
mod market;

#[cfg(feature = "genesis")]
pub use genesis::Genesis;
#[cfg(feature = "hive")]
pub use hive::Hive;
#[cfg(feature = "market")]
pub use market::Market;

use crate::Server;

/// The list of them.
pub const OURS: &[fn(Server) -> Server] = &[
    #[cfg(feature = "genesis")]
    Server::with::<Genesis>,
    #[cfg(feature = "hive")]
    Server::with::<Hive>,
    #[cfg(feature = "market")]
    Server::with::<Market>,
];

#[cfg(all(test, feature = "hive", feature = "market"))]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::ServeFlags;
    use crate::cli::command_line;
    use crate::cli::config::Config;
    use crate::cli::shown_config::shown;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ServeFlags,
    }

    #[test]
    fn two_applications_of_one_name_are_refused() {
        assert!(command_line(&Server::new().with::<Hive>().with::<Market>().applications).is_ok());
        let twice = Server::new().with::<Market>().with::<Market>();
        assert!(command_line(&twice.applications).err().unwrap().message.contains("market"));
    }

    #[test]
    fn every_section_is_shown_as_it_holds_and_can_be_read_again() {
        let written = "[outbox]\npublisher.fixedDelayMs = 500\n[hive]\nenabled = false\n[hive.simulated]\nseed = 7\n\
            [market.order.timeout]\npending-minutes = 3\n\
            [[channel]]\nname = \"a\"\nevents = [\"*\"]\nexchange = \"e\"\nretries = [\"1s\"]\n\
            [topology]\nexchanges = [{ name = \"e\", kind = \"topic\" }]\n";
        let ours = Server::new().with_all(OURS).applications;
        let file = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            file
        };
        let config = |file: &tempfile::NamedTempFile| {
            let path = file.path().to_str().unwrap();
            Line::parse_from(["towpath", "--config", path]).flags.config(&ours).ok().unwrap()
        };
        let first = file(written);
        let text = shown(&config(&first)).ok().unwrap();
        for expected in [
            "enabled = false # file",
            "[hive.outbox.publisher]",
            "fixedDelayMs = 500 # file",
            "gateway = \"simulated\" # default",
            "seed = 7 # file",
            "interval-ms = 60000 # default",
            "[market.order.timeout]\npending-minutes = \"3m\" # file",
            "scan-batch = 200 # default",
            "[market.consumer]",
            "prefetch = 20 # default",
            "name = \"a\"",
            "patience = \"10s\"",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        // What is shown means the same as what was written.
        let again = config(&file(&text));
        assert_eq!(again.channels, config(&first).channels);
        let sections = |config: &Config| {
            config.sections.iter().map(|section| section.settings.shown().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(sections(&again), sections(&config(&first)));
    }
}
