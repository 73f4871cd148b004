//! A page whose agent uses the files and terminals of the server.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::agent::{Client, example_agent};
use crate::common::program::Program;

/// A directory that ends with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("outrigger-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("inside")).expect("a directory");
        Self(path.canonicalize().expect("it exists"))
    }

    pub(crate) fn inside(&self, name: &str) -> PathBuf {
        self.0.join("inside").join(name)
    }

    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A client with a session, for whose agent the server has tools.
pub(crate) struct Page {
    pub(crate) client: Client,
    pub(crate) session: String,
    pub(crate) token: String,
    pub(crate) offered: Value,
}

impl Page {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let mut client = Client::connect(address);
        let asks = json!({"outrigger": {"clientTools": true}});
        let answer = client.ask(
            "initialize",
            json!({"protocolVersion": 1, "clientCapabilities": {"fs": {"readTextFile": false}}, "_meta": asks}),
        );
        let offered = answer["result"]["_meta"]["outrigger"]["clientTools"].clone();
        let (client, session, token) = client.open_session();
        Self {
            client,
            session,
            token,
            offered,
        }
    }

    /// Begins to let the agent ask for something. Returns the id of the prompt.
    pub(crate) fn begin(&mut self, method: &str, params: &Value) -> u64 {
        self.client
            .prompt(&self.session, &format!("ask {method} {params}"))
    }

    /// What the agent has got, once the prompt is answered.
    pub(crate) fn end(&mut self, prompt: u64) -> Value {
        let mut said = Value::Null;
        loop {
            let message = self.client.hear();
            let update = &message["params"]["update"];
            if update["sessionUpdate"] == "agent_message_chunk" {
                let text = update["content"]["text"].as_str().unwrap_or_default();
                said = serde_json::from_str(text).unwrap_or_default();
            }
            if message["id"] == prompt && message.get("method").is_none() {
                return said;
            }
        }
    }

    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        let prompt = self.begin(method, params);
        self.end(prompt)
    }

    pub(crate) fn read(&mut self, path: &Path) -> Value {
        self.ask("fs/read_text_file", &json!({"path": path}))
    }

    pub(crate) fn write(&mut self, path: &Path, content: &str) -> Value {
        let params = json!({"path": path, "content": content});
        self.ask("fs/write_text_file", &params)
    }

    pub(crate) fn terminal(&mut self, params: &Value) -> String {
        let created = self.ask("terminal/create", params);
        let id = created["terminalId"].as_str();
        id.unwrap_or_else(|| panic!("{created}")).to_owned()
    }

    pub(crate) fn of_terminal(&mut self, what: &str, id: &str) -> Value {
        self.ask(&format!("terminal/{what}"), &json!({"terminalId": id}))
    }
}

/// Starts an agent whose pages have the files of a folder.
pub(crate) fn start(folder: &Folder, flags: &[&str]) -> (Program, SocketAddr) {
    let (inside, agent) = (folder.inside("."), example_agent());
    let mut arguments = vec!["agent", "--client-fs", inside.to_str().expect("UTF-8")];
    arguments.extend(flags);
    arguments.extend(["--", &agent]);
    let server = Program::start(&arguments);
    let address = server.address();
    (server, address)
}
