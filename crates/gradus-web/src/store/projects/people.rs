//! People: their roles and sign-ins.

use gradus::Result;
use rusqlite::{OptionalExtension, Row, params};

use super::person::{Person, Role};
use super::{Projects, broken};
use crate::secret::{same, secret};
use crate::store::sessions::{SIGNED_IN, Session, sum};
use crate::store::{chats, now};

fn person(row: &Row<'_>) -> rusqlite::Result<Person> {
    let role: String = row.get(2)?;
    Ok(Person {
        id: row.get(0)?,
        name: row.get(1)?,
        role: Role::of(&role).ok_or_else(|| broken(2, "an unknown role"))?,
    })
}

impl Projects<'_> {
    /// Adds a person, or issues a new token to an existing one and ends their sessions. Returns the token.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn invite(&self, name: &str, role: Role) -> Result<String> {
        let token = secret();
        self.0.change(|open| {
            let row = params![name, sum(&token), role.name()];
            open.execute(
                "INSERT INTO people (name, token_sum, role) VALUES (?1, ?2, ?3)
                 ON CONFLICT (name) DO UPDATE SET token_sum = excluded.token_sum, role = excluded.role",
                row,
            )?;
            let ended = "DELETE FROM signed_in WHERE person = (SELECT id FROM people WHERE name = ?1)";
            open.execute(ended, [name])
        })?;
        Ok(token)
    }

    /// Signs a person in and returns their new session. `None` if the name and token do not match. The session has a new secret, so knowing
    /// the secret of `before` grants no access. The conversations of `before` now belong to the person.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn sign_in(&self, before: &Session, name: &str, token: &str) -> Result<Option<Session>> {
        let session = self.0.sessions().begin();
        let is_in = self.0.change(|open| {
            let sought = "SELECT id, token_sum FROM people WHERE name = ?1";
            let row = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
            let known = open.query_row(sought, [name], row).optional()?;
            let Some((id, _)) = known.filter(|(_, known)| same(known, &sum(token))) else { return Ok(false) };
            open.execute("DELETE FROM signed_in WHERE session_sum = ?1 OR until <= ?2", params![before.sum(), now()])?;
            let row = params![session.sum(), id, now() + SIGNED_IN];
            open.execute("INSERT INTO signed_in (session_sum, person, until) VALUES (?1, ?2, ?3)", row)?;
            chats::hand_over(open, before, id)?;
            Ok(true)
        })?;
        Ok(is_in.then_some(session))
    }

    /// Signs a session out.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn sign_out(&self, session: &Session) -> Result<()> {
        self.0.change(|open| open.execute("DELETE FROM signed_in WHERE session_sum = ?1", [session.sum()]).map(drop))
    }

    /// Returns the person who is signed in.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn who(&self, session: &Session) -> Result<Option<Person>> {
        self.0.read(|open| {
            let sought = "SELECT id, name, role FROM people JOIN signed_in ON person = id
                 WHERE session_sum = ?1 AND until > ?2";
            open.query_row(sought, params![session.sum(), now()], person).optional()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn a_new_invitation_and_time_end_what_was_signed_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a file");
        let projects = store.projects();
        let enter = |token: &str| projects.sign_in(&store.sessions().begin(), "ada", token).expect("kept");
        let token = projects.invite("ada", Role::Owner).expect("kept");
        let (one, other) = (enter(&token).expect("signed in"), enter(&token).expect("signed in"));
        let invitation = projects.invite("ada", Role::Annotator).expect("kept");
        assert!([&one, &other].iter().all(|session| projects.who(session).expect("read").is_none()));
        assert!(enter(&token).is_none(), "the token before is worth nothing");

        let session = enter(&invitation).expect("signed in");
        assert_eq!(projects.who(&session).expect("read").expect("signed in").role, Role::Annotator);
        store.change(|open| open.execute("UPDATE signed_in SET until = ?1", [now()])).expect("changed");
        assert!(projects.who(&session).expect("read").is_none(), "it has ended");
        let again = enter(&invitation).expect("signed in");
        assert_eq!(store.sessions().kept().expect("read"), 1, "what has ended is removed");
        projects.sign_out(&again).expect("kept");
        assert!(projects.who(&again).expect("read").is_none());
    }
}
