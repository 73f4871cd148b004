//! `outrigger serve`: several services behind one listener.

use super::{Command, Serves};

pub(super) static SERVE: Command = Command {
    name: "serve",
    usage: "--config FILE.json [OPTIONS]",
    summary: "serve several of these on one listener",
    brief: Some(
        "\
Serves several commands on one listener, each at a path set in the configuration file.
A browser finds a console at /.",
    ),
    about: "\
Serves several of the other commands behind one listener, each at a path. The file names them:

  {
    \"listen\": [\"127.0.0.1:7070\"],
    \"routes\": {
      \"/acp\": {\"agent\": {\"command\": [\"my-agent\"], \"grace\": \"1m\"}},
      \"/shell\": {\"terminal\": {\"command\": [\"bash\", \"-l\"]}},
      \"/process\": {\"processes\": {}},
      \"/live/...\": {\"app\": {\"command\": [\"./app\"]}}
    }
  }

The settings of a route are the options of its command by their names. The longest path that matches
a request wins, and '/...' at the end of a path includes all paths below it. If one of the programs
fails, only its route stops: new clients get 503 until the program works again.

In a browser, / is a console that shows the activity of the routes, unless / is itself a route.
",
    examples: &[
        (
            "serve the routes of a file",
            "outrigger serve --config outrigger.json",
        ),
        (
            "check the file and look up its programs",
            "outrigger serve --config outrigger.json --check",
        ),
    ],
    has_console: true,
    serves: Serves::Routes,
    ..Command::BASE
};
