//! A maze in words: the policy goes north, east, south or west until it finds the exit.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Dice;
use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::tool::Tool;

/// A maze of square rooms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MazeConfig {
    /// The number of rooms per side. Default 3.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 50)))]
    pub size: usize,
    /// The number of moves before the game is lost. Default 20.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub moves: usize,
}

impl Default for MazeConfig {
    fn default() -> Self {
        Self { size: 3, moves: 20 }
    }
}

/// The game. The reward for finding the exit is the smallest possible number of moves divided by the number of moves made. A lost game has
/// reward 0.
#[derive(Debug, Clone)]
pub struct Maze {
    config: MazeConfig,
}

const WAYS: [(&str, isize, isize); 4] = [("north", 0, -1), ("east", 1, 0), ("south", 0, 1), ("west", -1, 0)];

impl Maze {
    /// Creates the game.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if a key is out of range.
    pub fn new(config: MazeConfig) -> Result<Self> {
        if !(2..=50).contains(&config.size) {
            return Err(Error::config(format!("`size` is {}, but must be between 2 and 50", config.size)));
        }
        if config.moves == 0 {
            return Err(Error::config("`moves` is 0, but must be at least 1"));
        }
        Ok(Self { config })
    }
}

impl Environment for Maze {
    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn begin(&self, start: &Start) -> Result<NewEpisode> {
        let map = Map::new(self.config.size, start.seed);
        let game = Game { moves: self.config.moves, at: 0, done: 0, is_over: false, map };
        let rules = format!(
            "You are in a maze. Write one word: north, east, south or west. You have {} moves to find the exit. {}",
            self.config.moves,
            game.described()
        );
        Ok(NewEpisode { episode: Box::new(game), opening: Some(rules) })
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

/// Connections between rooms. They form a tree, so there is one path to every room.
struct Map {
    size: usize,
    /// For each room, whether north, east, south and west are open.
    open: Vec<[bool; 4]>,
    shortest: usize,
}

impl Map {
    fn new(size: usize, seed: u64) -> Self {
        let mut map = Self { size, open: vec![[false; 4]; size * size], shortest: 0 };
        let (mut dice, mut path, mut seen) = (Dice(seed), vec![0], vec![false; size * size]);
        seen[0] = true;
        while let Some(&room) = path.last() {
            let fresh: Vec<usize> =
                (0..4).filter(|&way| map.neighbors(room, way).is_some_and(|next| !seen[next])).collect();
            if fresh.is_empty() {
                path.pop();
                continue;
            }
            let way = fresh[dice.between(0, fresh.len() as i64 - 1) as usize];
            let next = map.neighbors(room, way).expect("it was chosen among those");
            (map.open[room][way], map.open[next][(way + 2) % 4], seen[next]) = (true, true, true);
            path.push(next);
        }
        map.shortest = map.distance();
        map
    }

    /// Returns the neighboring room in a direction, whether or not the way is open.
    fn neighbors(&self, room: usize, way: usize) -> Option<usize> {
        let (_, x, y) = WAYS[way];
        let (column, row) = ((room % self.size).checked_add_signed(x)?, (room / self.size).checked_add_signed(y)?);
        (column < self.size && row < self.size).then_some(row * self.size + column)
    }

    fn exit(&self) -> usize {
        self.open.len() - 1
    }

    /// Smallest number of moves from the first room to the exit.
    fn distance(&self) -> usize {
        let (mut queue, mut found) = (VecDeque::from([0]), vec![None; self.open.len()]);
        found[0] = Some(0);
        while let Some(room) = queue.pop_front() {
            for way in (0..4).filter(|&way| self.open[room][way]) {
                let next = self.neighbors(room, way).expect("an open way leads somewhere");
                if found[next].is_none() {
                    found[next] = found[room].map(|moves: usize| moves + 1);
                    queue.push_back(next);
                }
            }
        }
        found[self.exit()].expect("every room is reached")
    }
}

struct Game {
    moves: usize,
    at: usize,
    done: usize,
    is_over: bool,
    map: Map,
}

impl Game {
    fn described(&self) -> String {
        let open = self.map.open[self.at];
        let ways: Vec<&str> = (0..4).filter(|&way| open[way]).map(|way| WAYS[way].0).collect();
        format!("Open ways: {}.", ways.join(", "))
    }
}

impl Episode for Game {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        self.done += 1;
        let text = turn.text.to_lowercase();
        let way = (0..4).filter_map(|way| Some((text.rfind(WAYS[way].0)?, way))).max().map(|(_, way)| way);
        let answer = match way {
            None => "Write north, east, south or west.".to_owned(),
            Some(way) if !self.map.open[self.at][way] => format!("A wall. {}", self.described()),
            Some(way) => {
                self.at = self.map.neighbors(self.at, way).expect("an open way leads somewhere");
                self.described()
            }
        };
        let is_found = self.at == self.map.exit();
        let is_done = is_found || self.done == self.moves;
        self.is_over = is_done;
        let reward = if is_found { self.map.shortest as f64 / self.done as f64 } else { 0.0 };
        let found = ("found".to_owned(), f64::from(u8::from(is_found)));
        Ok(Observation {
            replies: if is_done { Vec::new() } else { vec![Reply::User { content: answer }] },
            reward: is_done.then_some(reward),
            is_done,
            metrics: [found].into(),
        })
    }

    fn finish(&mut self) -> Result<Option<f64>> {
        // A game that was not finished is lost.
        Ok((!self.is_over).then_some(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_to_the_right_finds_every_exit() {
        for (seed, size) in (0..60).zip([2, 3, 5, 8].into_iter().cycle()) {
            let maze = Maze::new(MazeConfig { size, moves: 1000 }).expect("a maze");
            let start = Start { name: "a".into(), seed, row: serde_json::Map::new() };
            let NewEpisode { mut episode, opening } = maze.begin(&start).expect("begun");
            let (mut text, mut facing, mut moves) = (opening.expect("rules"), 0, 0);
            let reward = loop {
                let open = text.rsplit("Open ways: ").next().expect("ways").to_owned();
                facing = (0..4)
                    .map(|turn| (facing + 1 + 4 - turn) % 4)
                    .find(|&way| open.contains(WAYS[way].0))
                    .expect("a way");
                moves += 1;
                let turn = Turn { text: format!("Go {}!", WAYS[facing].0.to_uppercase()), ..Turn::default() };
                let observation = episode.step(&turn).expect("answered");
                if observation.is_done {
                    break observation.reward.expect("a reward");
                }
                text = observation.replies[0].content().to_owned();
            };
            assert!(reward > 0.0 && reward <= 1.0 && moves <= 4 * size * size, "{reward} in {moves}");
        }
    }

    #[test]
    fn walls_and_nonsense_cost_a_move() {
        let maze = Maze::new(MazeConfig { size: 3, moves: 2 }).expect("a maze");
        let start = Start { name: "a".into(), seed: 1, row: serde_json::Map::new() };
        let mut episode = maze.begin(&start).expect("begun").episode;
        let step = |episode: &mut Box<dyn Episode>, text: &str| {
            episode.step(&Turn { text: text.into(), ..Turn::default() }).expect("answered")
        };
        let wall = step(&mut episode, "north");
        assert!(wall.replies[0].content().starts_with("A wall. Open ways: "), "{wall:?}");
        let last = step(&mut episode, "what?");
        assert_eq!((last.is_done, last.reward), (true, Some(0.0)));
        assert!(Maze::new(MazeConfig { size: 1, moves: 2 }).is_err());
    }
}
