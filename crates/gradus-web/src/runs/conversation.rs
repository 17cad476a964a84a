//! Display of a multi-turn episode as a conversation: the policy's text, and the replies of the environment and its tools.

use gradus::html;
use gradus::html::Html;
use gradus::run::database::{EpisodeRecord, TurnRecord};
use gradus_environments::Reply;

use super::page::short;

/// Renders the turns of an episode, and the reason why it ended.
pub fn conversation(episode: &EpisodeRecord) -> Html {
    let reward = |reward: f64| html![" <span class=\"soft\">reward " (short(reward)) "</span>"];
    let turn = |who: &'static str, class: &'static str, name: Html, text: &str| {
        html![
            "<li class=\"" (class) "\"><p class=\"who\">" (who) (name) "</p><div class=\"text\" dir=\"auto\">" (text) "</div></li>\n"
        ]
    };
    let mut turns = Html::new();
    if let Some(opening) = &episode.opening {
        turns.add(&turn("Environment, in the prompt", "turn-reply", Html::new(), opening));
    }
    for TurnRecord { text, observation, is_read } in &episode.turns {
        turns.add(&turn("Policy", "turn-policy", html![(observation.reward.map(reward))], text));
        for reply in &observation.replies {
            // The policy never read the replies to the last turn.
            let unread = if *is_read { "" } else { ", not read" };
            let (who, name) = match reply {
                Reply::User { .. } | Reply::Tokens { .. } => ("Environment", html![(unread)]),
                Reply::Tool { name, .. } => ("Tool ", html!["<code>" (name) "</code>" (unread)]),
            };
            turns.add(&turn(who, "turn-reply", name, reply.content()));
        }
    }
    let why = episode.failure.as_ref().map(|failure| html![": "(failure)]);
    let end = match episode.end.as_str() {
        "done" => "The environment ended the episode",
        "turns" => "The episode reached its limit of turns",
        "tokens" => "The episode reached its limit of tokens",
        "failed" => "The episode failed",
        other => other,
    };
    let class = if episode.failure.is_some() { "bad" } else { "soft" };
    html![
        "<ol class=\"episode\">\n" (turns) "</ol>\n<p class=\"small " (class) "\">" (end) (why) "."
        (episode.reward.map(|of| html![" Reward of the episode: " (short(of)) "."])) "</p>\n"
    ]
}

#[cfg(test)]
mod tests {
    use gradus_environments::Observation;

    use super::*;

    #[test]
    fn an_episode_reads_as_a_conversation() {
        let tool = Reply::Tool { name: "search <b>".into(), id: None, content: "tea: 90 °C".into() };
        let turn = |text: &str, replies: Vec<Reply>, is_read: bool, reward: Option<f64>| TurnRecord {
            text: text.into(),
            observation: Observation { replies, reward, ..Observation::default() },
            is_read,
        };
        let episode = EpisodeRecord {
            name: "step 1, prompt 1, completion 1".into(),
            opening: Some("Guess.".into()),
            turns: vec![
                turn("look it up", vec![tool], true, Some(0.5)),
                turn("<i>90</i>", vec![Reply::User { content: "right".into() }], false, None),
            ],
            end: "failed".into(),
            failure: Some("no answer after 120 s".into()),
            reward: Some(1.0),
        };
        let page = conversation(&episode).into_string();
        let order =
            ["Guess.", "look it up", "Tool ", "search &lt;b&gt;", "tea: 90 °C", "&lt;i&gt;90&lt;/i&gt;", "right"];
        let places: Vec<usize> = order.iter().map(|part| page.find(part).expect(part)).collect();
        assert!(places.is_sorted(), "{page}");
        assert!(page.contains("reward 0.500") && page.contains("Environment, not read"), "{page}");
        assert!(page.contains("The episode failed: no answer after 120 s.") && page.contains("1.000"), "{page}");
    }
}
