//! List of conversations in the sidebar: searchable, latest first.

use gradus::html;
use gradus::html::Html;

use crate::store::chats::Conversation;

/// Maximum number of listed conversations. A search finds the others.
const LISTED: usize = 100;

/// Renders the list. `search` is the search text, and `current` the displayed conversation.
pub fn sidebar(conversations: &[Conversation], search: &str, current: Option<i64>) -> Html {
    let row = |conversation: &Conversation| {
        let with = match conversation.settings.blind {
            true => "two models, names hidden".to_owned(),
            false => conversation.settings.models.join(" and "),
        };
        let owner = conversation.owner.as_ref().map(|owner| html![" · "(owner)]);
        let current = (current == Some(conversation.id)).then(|| html![" aria-current=\"page\""]);
        html![
            "<li><a href=\"/chat/" (conversation.id) "\"" (current) ">" (conversation.title) "</a><small class=\"soft\">" (with) (owner)
            "</small></li>\n"
        ]
    };
    let rows: Vec<Html> = conversations.iter().take(LISTED).map(row).collect();
    let more = (conversations.len() > LISTED).then(|| {
        html!["<p class=\"small soft\">These are the newest " (LISTED) " of " (conversations.len()) ". Search to find others.</p>\n"]
    });
    let list = match (rows.is_empty(), search.is_empty()) {
        (true, true) => html!["<p class=\"small soft\">There is no conversation yet.</p>\n"],
        (true, false) => html!["<p class=\"small soft\">No conversation has these words.</p>\n"],
        (false, _) => html!["<ul>\n" (rows) "</ul>\n" (more)],
    };
    let all = (!search.is_empty()).then(|| html!["<p class=\"small\"><a href=\"/chat\">Show all</a></p>\n"]);
    html![
        "<nav class=\"talks\" aria-labelledby=\"talks\">\n<h2 id=\"talks\">Conversations</h2>\n"
        "<p><a class=\"button quiet\" href=\"/chat\">New conversation</a></p>\n"
        "<form method=\"get\" action=\"/chat\" role=\"search\" class=\"find\"><label class=\"unseen\" for=\"search\">Search conversations</label>"
        "<input id=\"search\" name=\"search\" type=\"search\" placeholder=\"Search\" value=\"" (search) "\"><button type=\"submit\">Search</button></form>\n"
        (list) (all) "<p class=\"small\"><a href=\"/chat/votes\">Votes and ranking</a></p>\n</nav>\n"
    ]
}
