//! Conversations: trees of messages, one path of which is displayed, and votes on pairs of answers.

use std::collections::{HashMap, HashSet};

use gradus::Result;
use gradus::search::SoughtText;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::projects::{Person, Role};
use super::sessions::Session;
use super::{Store, now};

pub(super) const TABLES: &str = "
    CREATE TABLE conversations (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL,
        settings TEXT NOT NULL,
        -- The last message of the path that is shown.
        leaf INTEGER,
        changed INTEGER NOT NULL
    );
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent INTEGER REFERENCES messages (id) ON DELETE CASCADE,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        model TEXT,
        -- Answers that stand side by side have the number of the left one.
        pair INTEGER,
        -- JSON: what the model thought of each token, and what reward models thought of the answer.
        tokens TEXT,
        rewards TEXT,
        -- Why an answer ended; none while it is written, and after the server was killed.
        ended TEXT,
        made INTEGER NOT NULL
    );
    CREATE INDEX messages_of ON messages (conversation, id);
    CREATE TABLE votes (
        pair INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
        choice TEXT NOT NULL,
        made INTEGER NOT NULL
    );
";

/// Scores of the parts of dense rewards.
pub(super) const PARTS: &str = "
    ALTER TABLE messages ADD COLUMN parts TEXT;
";

/// Owners of conversations.
pub(super) const OWNERS: &str = "
    -- A person's number, or the sum of a session; none where it began on the server's own machine.
    ALTER TABLE conversations ADD COLUMN owner TEXT;
    CREATE INDEX conversations_of ON conversations (owner);
";

/// Authors of votes.
pub(super) const VOTERS: &str = "
    -- As `owner` of a conversation.
    ALTER TABLE votes ADD COLUMN voter TEXT;
";

/// Title of a conversation without messages.
const NEW: &str = "New conversation";

/// Maximum length of a title in characters.
const TITLE: usize = 80;

/// Shortens a text to a one-line title.
pub fn title(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(TITLE).collect()
}

/// Access rights to conversations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// Owner filter for conversations. `None` means all, which only the server's own machine may see.
    owner: Option<String>,
    /// Whether conversations without an owner are visible, too.
    sees_unowned: bool,
    /// Owner of new conversations and votes. `None` for a person on the server's own machine who has not signed in.
    author: Option<String>,
}

/// Owner of the conversations of a session that nobody has signed in with.
fn browser(session: &Session) -> String {
    format!("browser {}", session.sum())
}

fn someone(person: i64) -> String {
    format!("person {person}")
}

impl Asker {
    /// A person on the server's own machine. They see all conversations, and own new ones if they have signed in.
    pub fn everyone(person: Option<&Person>) -> Self {
        Self { owner: None, sees_unowned: true, author: person.map(|person| someone(person.id)) }
    }

    /// A person on another machine. They see only their own conversations. Owners of projects also see those that began on the server's own
    /// machine.
    pub fn of(session: &Session, person: Option<&Person>) -> Self {
        let author = Some(person.map_or_else(|| browser(session), |person| someone(person.id)));
        let sees_unowned = person.is_some_and(|person| person.role == Role::Owner);
        Self { owner: author.clone(), sees_unowned, author }
    }
}

/// Transfers the conversations of a session to the person who signs in.
pub(super) fn hand_over(open: &Transaction<'_>, session: &Session, person: i64) -> rusqlite::Result<usize> {
    let row = params![browser(session), someone(person)];
    open.execute("UPDATE conversations SET owner = ?2 WHERE owner = ?1", row)
}

/// Settings of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Models that answer: one or two.
    pub models: Vec<String>,
    /// Whether the names of the two models are hidden until the vote.
    pub blind: bool,
    /// Reward models that score every answer.
    pub judges: Vec<String>,
    /// System prompt; empty for none.
    pub system: String,
    /// Sampling temperature. This and the following fields are as in [`gradus::generate::SamplingParams`].
    pub temperature: f32,
    /// Sample from the fewest tokens with this total probability.
    pub top_p: f32,
    /// Number of most likely tokens to sample from; 0 for all.
    pub top_k: usize,
    /// Minimum probability relative to the most likely token.
    pub min_p: f32,
    /// Divisor of the logits of tokens that have already occurred.
    pub repetition_penalty: f32,
    /// Maximum number of tokens of an answer.
    pub max_tokens: usize,
    /// Seed of all answers.
    pub seed: u64,
}

/// A conversation in the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Id of the conversation.
    pub id: i64,
    /// Title, from the first message.
    pub title: String,
    /// Settings of the conversation.
    pub settings: Settings,
    /// Last message of the displayed path.
    pub leaf: Option<i64>,
    /// Time of the last message, in seconds since 1970.
    pub changed: i64,
    /// Name of the owner, if they have signed in.
    pub owner: Option<String>,
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Id of the message.
    pub id: i64,
    /// Message before it.
    pub parent: Option<i64>,
    /// `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub text: String,
    /// Model of an answer.
    pub model: Option<String>,
    /// Id of the left answer, if the message is one of a pair.
    pub pair: Option<i64>,
    /// Scores by reward models, with their names.
    pub rewards: Vec<(String, f32)>,
    /// Scores by the parts of dense rewards.
    pub parts: Vec<PartScore>,
    /// Reason why the answer ended.
    pub ended: Option<String>,
}

/// Score of an answer by one part of a dense reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartScore {
    /// Name of the part; empty if the model has no named parts.
    pub name: String,
    /// Score of the whole answer, before weighting.
    pub total: f32,
    /// Scored segments.
    pub segments: Vec<Segment>,
}

/// First and end character of a segment, its score, and its most likely label.
pub type Segment = (usize, usize, f32, Option<String>);

/// Content of an answer, complete or in progress.
#[derive(Debug, Clone, Default)]
pub struct Answered {
    /// Text of the answer.
    pub text: String,
    /// Tokens as JSON.
    pub tokens: Option<String>,
    /// Scores by reward models.
    pub rewards: Vec<(String, f32)>,
    /// Scores by the parts of dense rewards.
    pub parts: Vec<PartScore>,
    /// Reason why the answer ended.
    pub ended: Option<&'static str>,
}

/// A vote on two answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The left one is better.
    Left,
    /// The right one is better.
    Right,
    /// Both are equally good.
    Tie,
    /// Both are bad.
    Bad,
}

impl Choice {
    /// Returns the name of the choice in the database and in exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
            Self::Tie => "tie",
            Self::Bad => "bad",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Left, Self::Right, Self::Tie, Self::Bad].into_iter().find(|choice| choice.name() == name)
    }
}

/// Result of a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voted {
    /// The vote is stored.
    Stored,
    /// An earlier vote is final.
    Final,
    /// The answers do not exist.
    Nowhere,
}

/// A vote with the models that it compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote {
    /// Model of the left answer.
    pub left: String,
    /// Model of the right answer.
    pub right: String,
    /// Better answer.
    pub choice: Choice,
    /// Whether the names were hidden.
    pub is_blind: bool,
}

/// A conversation with all its messages.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The conversation.
    pub conversation: Conversation,
    /// Messages, sorted by id.
    pub messages: Vec<Message>,
    /// Votes by pair.
    pub votes: HashMap<i64, Choice>,
}

impl Tree {
    /// Returns a message.
    pub fn message(&self, id: i64) -> Option<&Message> {
        self.messages.binary_search_by_key(&id, |message| message.id).ok().map(|at| &self.messages[at])
    }

    /// Returns the messages from the first one to `leaf`.
    pub fn path(&self, leaf: Option<i64>) -> Vec<&Message> {
        let mut path = Vec::new();
        let mut at = leaf.and_then(|id| self.message(id));
        while let Some(message) = at {
            path.push(message);
            // Parents are older, so this terminates.
            at = message.parent.filter(|parent| *parent < message.id).and_then(|id| self.message(id));
        }
        path.reverse();
        path
    }

    /// Returns the messages with the same parent as `message`. A pair counts once, by its left answer.
    pub fn siblings(&self, message: &Message) -> Vec<i64> {
        let are = |other: &&Message| {
            other.parent == message.parent
                && other.role == message.role
                && other.pair.is_none_or(|pair| pair == other.id)
        };
        self.messages.iter().filter(are).map(|other| other.id).collect()
    }

    /// Returns the pair of answers that contains `message`, left to right, or `message` alone if it is not in a pair.
    pub fn side_by_side<'t>(&'t self, message: &'t Message) -> Vec<&'t Message> {
        match message.pair {
            Some(pair) => self.messages.iter().filter(|other| other.pair == Some(pair)).collect(),
            None => vec![message],
        }
    }

    /// Returns the latest descendant of message `id`.
    pub fn newest_below(&self, id: i64) -> i64 {
        let mut at = id;
        while let Some(child) = self.messages.iter().rfind(|message| message.parent == Some(at)) {
            at = child.pair.unwrap_or(child.id);
        }
        at
    }

    /// Returns whether names are hidden: a pair of answers in a blind conversation, without a vote.
    pub fn is_hidden(&self, message: &Message) -> bool {
        self.conversation.settings.blind && message.pair.is_some_and(|pair| !self.votes.contains_key(&pair))
    }
}

/// Conversations that a person may see. For this person, others do not exist.
pub struct Chats<'a> {
    pub(super) store: &'a Store,
    pub(super) asker: &'a Asker,
}

/// SQL condition for the visibility of a conversation. The first parameter is the owner filter, the second selects conversations without
/// owner.
const SEEN: &str = "(?1 IS NULL OR owner = ?1 OR (?2 AND owner IS NULL))";

const CONVERSATION: &str = "SELECT id, title, settings, leaf, changed,
     (SELECT name FROM people WHERE 'person ' || people.id = owner) FROM conversations";

fn conversation(row: &Row<'_>) -> rusqlite::Result<Conversation> {
    let settings: String = row.get(2)?;
    let settings = serde_json::from_str(&settings)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, error.into()))?;
    Ok(Conversation {
        id: row.get(0)?,
        title: row.get(1)?,
        settings,
        leaf: row.get(3)?,
        changed: row.get(4)?,
        owner: row.get(5)?,
    })
}

fn message(row: &Row<'_>) -> rusqlite::Result<Message> {
    let (rewards, parts): (Option<String>, Option<String>) = (row.get(6)?, row.get(8)?);
    Ok(Message {
        id: row.get(0)?,
        parent: row.get(1)?,
        role: row.get(2)?,
        text: row.get(3)?,
        model: row.get(4)?,
        pair: row.get(5)?,
        rewards: rewards.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        parts: parts.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        ended: row.get(7)?,
    })
}

fn json(settings: &impl Serialize) -> String {
    serde_json::to_string(settings).expect("numbers and texts are JSON")
}

impl Chats<'_> {
    /// Returns whether the person may see conversation `id`.
    fn is_seen(&self, open: &Transaction<'_>, id: i64) -> rusqlite::Result<bool> {
        let sought = format!("SELECT EXISTS (SELECT 1 FROM conversations WHERE id = ?3 AND {SEEN})");
        open.query_row(&sought, params![self.asker.owner, self.asker.sees_unowned, id], |row| row.get(0))
    }

    /// Returns whether `message` is `None` or belongs to conversation `id`, and the person may see that conversation.
    fn belongs(&self, open: &Transaction<'_>, id: i64, message: Option<i64>) -> rusqlite::Result<bool> {
        let sought = "SELECT EXISTS (SELECT 1 FROM messages WHERE conversation = ?1 AND id = ?2)";
        Ok(self.is_seen(open, id)?
            && match message {
                Some(message) => open.query_row(sought, [id, message], |row| row.get(0))?,
                None => true,
            })
    }

    /// Returns all conversations, latest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn list(&self) -> Result<Vec<Conversation>> {
        self.search("")
    }

    /// Returns the conversations whose title or messages contain `text`, latest first. Upper and lower case are equal.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn search(&self, text: &str) -> Result<Vec<Conversation>> {
        let sought = SoughtText::new(text);
        self.store.read(|open| {
            let mut seen = open.prepare(&format!("{CONVERSATION} WHERE {SEEN} ORDER BY changed DESC, id DESC"))?;
            let seen = seen.query_map(params![self.asker.owner, self.asker.sees_unowned], conversation)?;
            let mut found = seen.collect::<rusqlite::Result<Vec<_>>>()?;
            if text.is_empty() {
                return Ok(found);
            }
            // SQLite's `LIKE` folds ASCII letters only, so the texts are compared here.
            let mut said = open.prepare(&format!(
                "SELECT conversation, text FROM messages JOIN conversations ON conversations.id = conversation WHERE {SEEN}"
            ))?;
            let said = said.query_map(params![self.asker.owner, self.asker.sees_unowned], |row| {
                let is_found = sought.is_in(row.get_ref(1)?.as_str()?);
                Ok(is_found.then_some(row.get::<_, i64>(0)?))
            })?;
            let ids: HashSet<i64> = said.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?;
            found.retain(|found| ids.contains(&found.id) || sought.is_in(&found.title));
            Ok(found)
        })
    }

    /// Returns all votes on answers of two models, oldest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn votes(&self) -> Result<Vec<Vote>> {
        self.store.read(|open| {
            let mut found = open.prepare(&format!(
                "SELECT one.model, other.model, choice, json_extract(settings, '$.blind') FROM votes
                 JOIN messages AS one ON one.id = votes.pair
                 JOIN messages AS other ON other.pair = votes.pair AND other.id <> votes.pair
                 JOIN conversations ON conversations.id = one.conversation WHERE {SEEN}
                 AND one.model IS NOT NULL AND other.model IS NOT NULL ORDER BY votes.pair"
            ))?;
            let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?, row.get(3)?));
            let found = found.query_map(params![self.asker.owner, self.asker.sees_unowned], row)?;
            let found = found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter();
            let vote = |(left, right, choice, is_blind): (String, String, String, bool)| {
                Some(Vote { left, right, choice: Choice::of(&choice)?, is_blind })
            };
            Ok(found.filter_map(vote).collect())
        })
    }

    /// Changes the title of a conversation. Returns whether it exists.
    ///
    /// # Errors
    /// The change cannot be stored.
    pub fn rename(&self, id: i64, title: &str) -> Result<bool> {
        self.store.change(|open| {
            let change = "UPDATE conversations SET title = ?2 WHERE id = ?1";
            Ok(self.is_seen(open, id)? && open.execute(change, params![id, title])? > 0)
        })
    }

    /// Creates a conversation and returns its id.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn begin(&self, settings: &Settings) -> Result<i64> {
        self.store.change(|open| {
            let row = params![NEW, json(settings), now(), self.asker.author];
            open.execute("INSERT INTO conversations (title, settings, changed, owner) VALUES (?1, ?2, ?3, ?4)", row)?;
            Ok(open.last_insert_rowid())
        })
    }

    /// Returns a conversation with all its messages.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tree(&self, id: i64) -> Result<Option<Tree>> {
        self.store.read(|open| {
            if !self.is_seen(open, id)? {
                return Ok(None);
            }
            let found = open.query_row(&format!("{CONVERSATION} WHERE id = ?1"), [id], conversation).optional()?;
            let Some(conversation) = found else { return Ok(None) };
            let mut messages = open.prepare(
                "SELECT id, parent, role, text, model, pair, rewards, ended, parts FROM messages WHERE conversation = ?1 ORDER BY id",
            )?;
            let messages = messages.query_map([id], message)?.collect::<rusqlite::Result<_>>()?;
            let mut votes = open.prepare(
                "SELECT pair, choice FROM votes WHERE pair IN (SELECT id FROM messages WHERE conversation = ?1)",
            )?;
            let votes = votes.query_map([id], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
            let votes = votes.collect::<rusqlite::Result<Vec<(i64, String)>>>()?;
            let votes = votes.into_iter().filter_map(|(pair, name)| Some((pair, Choice::of(&name)?))).collect();
            Ok(Some(Tree { conversation, messages, votes }))
        })
    }

    /// Adds a message after `parent` and returns its id. The first message becomes the title, unless there is one.
    ///
    /// # Errors
    /// It cannot be stored, or `parent` does not belong to the conversation.
    pub fn add_message(&self, id: i64, parent: Option<i64>, text: &str) -> Result<Option<i64>> {
        self.store.change(|open| {
            if !self.belongs(open, id, parent)? {
                return Ok(None);
            }
            let named = "UPDATE conversations SET title = ?2 WHERE id = ?1 AND title = ?3
                 AND NOT EXISTS (SELECT 1 FROM messages WHERE conversation = ?1)";
            open.execute(named, params![id, title(text), NEW])?;
            let message = insert(open, id, parent, "user", text, None)?;
            show(open, id, message)?;
            Ok(Some(message))
        })
    }

    /// Creates the answers of `models` to `parent`, as a pair if there are two, and returns their ids. The result is empty if `parent` does
    /// not exist.
    ///
    /// # Errors
    /// They cannot be stored.
    pub fn begin_answers(&self, id: i64, parent: i64, models: &[String]) -> Result<Vec<i64>> {
        self.store.change(|open| {
            if !self.belongs(open, id, Some(parent))? {
                return Ok(Vec::new());
            }
            let mut numbers = Vec::with_capacity(models.len());
            for model in models {
                numbers.push(insert(open, id, Some(parent), "assistant", "", Some(model))?);
            }
            if let [first, _, ..] = numbers[..] {
                for number in &numbers {
                    open.execute("UPDATE messages SET pair = ?2 WHERE id = ?1", params![number, first])?;
                }
            }
            if let Some(first) = numbers.first() {
                show(open, id, *first)?;
            }
            Ok(numbers)
        })
    }

    /// Stores the content of an answer that was created here.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn keep_answer(&self, message: i64, answered: &Answered) -> Result<()> {
        self.store.change(|open| {
            let Answered { text, tokens, rewards, parts, ended } = answered;
            let parts = (!parts.is_empty()).then(|| json(parts));
            let row = params![message, text, tokens, json(rewards), ended, parts];
            open.execute(
                "UPDATE messages SET text = ?2, tokens = ?3, rewards = ?4, ended = ?5, parts = ?6 WHERE id = ?1",
                row,
            )?;
            Ok(())
        })
    }

    /// Returns the tokens of an answer as JSON.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tokens(&self, id: i64, message: i64) -> Result<Option<String>> {
        self.store.read(|open| {
            if !self.is_seen(open, id)? {
                return Ok(None);
            }
            let sought = "SELECT tokens FROM messages WHERE conversation = ?1 AND id = ?2";
            Ok(open.query_row(sought, [id, message], |row| row.get(0)).optional()?.flatten())
        })
    }

    /// Displays the path to `message`. Returns whether it exists.
    ///
    /// # Errors
    /// The change cannot be stored.
    pub fn show(&self, id: i64, message: i64) -> Result<bool> {
        self.store.change(|open| {
            let is_there = self.belongs(open, id, Some(message))?;
            if is_there {
                show(open, id, message)?;
            }
            Ok(is_there)
        })
    }

    /// Votes on the two answers of `pair`, and continues from the better one. In a blind conversation the first vote is final, because it
    /// reveals the names. Otherwise, a later vote replaces it.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn vote(&self, id: i64, pair: i64, choice: Choice) -> Result<Voted> {
        self.store.change(|open| {
            if !self.is_seen(open, id)? {
                return Ok(Voted::Nowhere);
            }
            let mut sides =
                open.prepare("SELECT id FROM messages WHERE conversation = ?1 AND pair = ?2 ORDER BY id")?;
            let sides = sides.query_map([id, pair], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
            let [left, right] = sides[..] else { return Ok(Voted::Nowhere) };
            let found = open.query_row(&format!("{CONVERSATION} WHERE id = ?1"), [id], conversation)?;
            let before: Option<String> =
                open.query_row("SELECT choice FROM votes WHERE pair = ?1", [pair], |row| row.get(0)).optional()?;
            if let Some(before) = before.filter(|_| found.settings.blind) {
                return Ok(if before == choice.name() { Voted::Stored } else { Voted::Final });
            }
            let row = params![pair, choice.name(), now(), self.asker.author];
            open.execute("INSERT OR REPLACE INTO votes (pair, choice, made, voter) VALUES (?1, ?2, ?3, ?4)", row)?;
            show(open, id, if choice == Choice::Right { right } else { left })?;
            Ok(Voted::Stored)
        })
    }

    /// Changes the settings of a conversation. Returns false if it does not exist or is blind, because changes would reveal the names.
    ///
    /// # Errors
    /// The change cannot be stored.
    pub fn set(&self, id: i64, settings: &Settings) -> Result<bool> {
        self.store.change(|open| {
            if !self.is_seen(open, id)? {
                return Ok(false);
            }
            let found = open.query_row(&format!("{CONVERSATION} WHERE id = ?1"), [id], conversation).optional()?;
            if found.is_none_or(|found| found.settings.blind) {
                return Ok(false);
            }
            Ok(open.execute("UPDATE conversations SET settings = ?2 WHERE id = ?1", params![id, json(settings)])? > 0)
        })
    }

    /// Removes a conversation with all its messages and votes. Returns whether it existed.
    ///
    /// # Errors
    /// The database cannot be changed.
    pub fn remove(&self, id: i64) -> Result<bool> {
        self.store.change(|open| {
            Ok(self.is_seen(open, id)? && open.execute("DELETE FROM conversations WHERE id = ?1", [id])? > 0)
        })
    }
}

fn insert(
    open: &Transaction<'_>,
    id: i64,
    parent: Option<i64>,
    role: &str,
    text: &str,
    model: Option<&str>,
) -> rusqlite::Result<i64> {
    let row = params![id, parent, role, text, model, now()];
    open.execute(
        "INSERT INTO messages (conversation, parent, role, text, model, made) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        row,
    )?;
    Ok(open.last_insert_rowid())
}

fn show(open: &Transaction<'_>, id: i64, leaf: i64) -> rusqlite::Result<()> {
    open.execute("UPDATE conversations SET leaf = ?2, changed = ?3 WHERE id = ?1", params![id, leaf, now()])?;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Settings of a conversation with one model.
    pub fn settings() -> Settings {
        Settings {
            models: vec!["m".into()],
            blind: false,
            judges: Vec::new(),
            system: String::new(),
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_tokens: 1,
            seed: 0,
        }
    }

    #[test]
    fn a_conversation_is_there_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let (session, other) = (store.sessions().begin(), store.sessions().begin());
        let [here, ada, eve] = [Asker::everyone(None), Asker::of(&session, None), Asker::of(&other, None)];
        let unowned = store.chats(&here).begin(&settings()).expect("kept");
        let id = store.chats(&ada).begin(&settings()).expect("kept");
        let message = store.chats(&ada).add_message(id, None, "Hello").expect("kept").expect("there");
        let seen = |asker: &Asker| -> Vec<i64> {
            store.chats(asker).list().expect("read").into_iter().map(|found| found.id).collect()
        };
        assert_eq!((seen(&ada), seen(&eve)), (vec![id], vec![]));
        assert_eq!(seen(&here).len(), 2, "the machine's own user sees all");
        let theirs = store.chats(&eve);
        assert!(theirs.tree(id).expect("read").is_none());
        assert!(theirs.add_message(id, Some(message), "Mine").expect("read").is_none());
        assert!(theirs.begin_answers(id, message, &["m".into()]).expect("read").is_empty());
        assert!(
            !theirs.show(id, message).expect("read")
                && theirs.vote(id, message, Choice::Left).expect("read") == Voted::Nowhere
        );
        assert!(!theirs.set(id, &settings()).expect("read") && !theirs.remove(id).expect("read"));
        assert!(theirs.tokens(id, message).expect("read").is_none());
        // After signing in, a person owns their earlier conversations. An owner also sees those that began on the server's machine.
        let token = store.projects().invite("ada", Role::Owner).expect("kept");
        let session = store.projects().sign_in(&session, "ada", &token).expect("kept").expect("signed in");
        let person = store.projects().who(&session).expect("read");
        let mut all = seen(&Asker::of(&session, person.as_ref()));
        all.sort_unstable();
        assert_eq!((all, seen(&ada)), (vec![unowned, id], vec![]));
    }

    #[test]
    fn a_blind_vote_is_final_and_a_vote_has_its_person() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let token = store.projects().invite("ada", Role::Annotator).expect("stored");
        let session = store.projects().sign_in(&store.sessions().begin(), "ada", &token).expect("stored").expect("in");
        let ada = store.projects().who(&session).expect("read");
        let asker = Asker::everyone(ada.as_ref());
        let chats = store.chats(&asker);
        let begin = |blind| {
            let models = vec!["m".to_owned(), "n".to_owned()];
            let id = chats.begin(&Settings { models: models.clone(), blind, ..settings() }).expect("stored");
            let message = chats.add_message(id, None, "Hello").expect("stored").expect("there");
            (id, chats.begin_answers(id, message, &models).expect("stored")[0])
        };
        let (id, pair) = begin(true);
        let vote = |id, pair, choice| chats.vote(id, pair, choice).expect("stored");
        assert_eq!(vote(id, pair, Choice::Left), Voted::Stored);
        assert_eq!(vote(id, pair, Choice::Right), Voted::Final);
        assert_eq!(vote(id, pair, Choice::Left), Voted::Stored, "the same again");
        let tree = chats.tree(id).expect("read").expect("there");
        assert_eq!((tree.votes[&pair], tree.conversation.owner.as_deref()), (Choice::Left, Some("ada")));
        assert!(!chats.set(id, &settings()).expect("read"), "settings would show the names");
        let voter: String =
            store.read(|open| open.query_row("SELECT voter FROM votes", [], |row| row.get(0))).expect("read");
        assert_eq!(voter, format!("person {}", ada.expect("somebody").id));
        // If names are visible, a vote can be corrected.
        let (id, pair) = begin(false);
        assert_eq!([vote(id, pair, Choice::Left), vote(id, pair, Choice::Tie)], [Voted::Stored; 2]);
    }

    #[test]
    fn conversations_are_found_by_what_was_said_and_renamed() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let (session, other) = (store.sessions().begin(), store.sessions().begin());
        let [ada, eve] = [Asker::of(&session, None), Asker::of(&other, None)];
        let chats = store.chats(&ada);
        let begin = |text: &str| {
            let id = chats.begin(&settings()).expect("stored");
            (!text.is_empty()).then(|| chats.add_message(id, None, text).expect("stored").expect("there"));
            id
        };
        let (tea, share, empty) = (begin("The Tea is warm"), begin("100% of a_b \\ c"), begin(""));
        let found =
            |text: &str| -> Vec<i64> { chats.search(text).expect("read").into_iter().map(|found| found.id).collect() };
        assert_eq!((found("tea"), found("nothing"), found("").len()), (vec![tea], vec![], 3));
        assert_eq!([found("100%"), found("a_b"), found("\\")], [vec![share], vec![share], vec![share]]);
        assert_eq!([found("%"), found("_")], [vec![share], vec![share]], "they are no wild cards");
        assert!(store.chats(&eve).search("tea").expect("read").is_empty());
        let (annoyed, way) = (begin("Ärger ÜBER Öl"), begin("ΟΔΟΣ"));
        assert_eq!([found("ärger über"), found("οδος"), found("ΟΔΟσ")], [vec![annoyed], vec![way], vec![way]]);
        assert!(chats.rename(empty, "Cups").expect("stored") && !store.chats(&eve).rename(tea, "x").expect("stored"));
        assert_eq!(found("cups"), [empty]);
        chats.add_message(empty, None, "And saucers").expect("stored");
        assert_eq!(chats.tree(empty).expect("read").expect("there").conversation.title, "Cups", "a name stays");
        assert_eq!(title(&format!(" a\n b {}", "x".repeat(99))).len(), TITLE);
    }

    #[test]
    fn votes_have_their_models() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let (session, other) = (store.sessions().begin(), store.sessions().begin());
        let [ada, eve] = [Asker::of(&session, None), Asker::of(&other, None)];
        let chats = store.chats(&ada);
        for (blind, models, choice) in
            [(true, ["m", "n"], Choice::Right), (false, ["n", "m"], Choice::Tie), (false, ["m", "n"], Choice::Bad)]
        {
            let models = models.map(str::to_owned).to_vec();
            let id = chats.begin(&Settings { models: models.clone(), blind, ..settings() }).expect("stored");
            let message = chats.add_message(id, None, "Hello").expect("stored").expect("there");
            let pair = chats.begin_answers(id, message, &models).expect("stored")[0];
            assert_eq!(chats.vote(id, pair, choice).expect("stored"), Voted::Stored);
        }
        let vote = |left: &str, right: &str, choice, is_blind| Vote {
            left: left.into(),
            right: right.into(),
            choice,
            is_blind,
        };
        let expected = [
            vote("m", "n", Choice::Right, true),
            vote("n", "m", Choice::Tie, false),
            vote("m", "n", Choice::Bad, false),
        ];
        assert_eq!(chats.votes().expect("read"), expected);
        assert!(store.chats(&eve).votes().expect("read").is_empty());
    }
}
