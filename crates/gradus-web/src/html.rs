//! Pages are made of literals and values: a literal is markup, a value is text, and nothing makes the one of the other.
//!
//! `html!["<td>" (name) "</td>"]` is the only way to an [`Html`], and what stands in parentheses is escaped, its control
//! characters and those that turn the direction of text shown. An [`Html`] in parentheses stays what it is.

use gradus::text::visible;

/// Markup that shows what it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds markup. Only a literal is one.
    pub fn markup(&mut self, literal: &'static str) {
        self.0.push_str(literal);
    }

    /// Adds a value.
    pub fn add(&mut self, value: &(impl Show + ?Sized)) {
        value.show(self);
    }

    /// The page.
    pub fn into_string(self) -> String {
        self.0
    }

    /// How many bytes it has.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn text(&mut self, text: &str) {
        for c in visible(text).chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
    }
}

/// What can stand on a page, between tags and in quoted attributes.
pub trait Show {
    /// Adds itself to `html`.
    fn show(&self, html: &mut Html);
}

impl Show for Html {
    fn show(&self, html: &mut Html) {
        html.0.push_str(&self.0);
    }
}

impl Show for str {
    fn show(&self, html: &mut Html) {
        html.text(self);
    }
}

impl Show for String {
    fn show(&self, html: &mut Html) {
        html.text(self);
    }
}

impl<T: Show + ?Sized> Show for &T {
    fn show(&self, html: &mut Html) {
        (*self).show(html);
    }
}

impl<T: Show> Show for Option<T> {
    fn show(&self, html: &mut Html) {
        if let Some(value) = self {
            value.show(html);
        }
    }
}

impl<T: Show> Show for Vec<T> {
    fn show(&self, html: &mut Html) {
        self.iter().for_each(|value| value.show(html));
    }
}

macro_rules! show_numbers {
    ($($number:ty)*) => {$(
        impl Show for $number {
            fn show(&self, html: &mut Html) {
                html.0.push_str(&self.to_string());
            }
        }
    )*};
}

show_numbers!(usize u64 i64 u32 f64 f32);

/// An [`Html`] of literals, which are markup, and values in parentheses, which are shown.
#[macro_export]
macro_rules! html {
    ($($part:tt)*) => {{
        let mut html = $crate::html::Html::new();
        $crate::parts!(html $($part)*);
        html
    }};
}

/// The parts of [`html!`], one after the other.
#[doc(hidden)]
#[macro_export]
macro_rules! parts {
    ($html:ident) => {};
    ($html:ident $literal:literal $($rest:tt)*) => {
        $html.markup($literal);
        $crate::parts!($html $($rest)*);
    };
    ($html:ident ($value:expr) $($rest:tt)*) => {
        $html.add(&$value);
        $crate::parts!($html $($rest)*);
    };
}

/// `text` as one value of a query.
pub fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_an_address_is_escaped() {
        assert_eq!(percent("runs/a b?x=1#&é"), "runs/a%20b%3Fx%3D1%23%26%C3%A9");
    }

    #[test]
    fn literals_are_markup_and_values_are_text() {
        let hostile = "<script>alert('1')</script>\" onload=x \u{1b}[2J\u{202e}";
        let page = html!["<p title=\"" (hostile) "\">" (hostile) (html!["<b>" (3usize) "</b>"]) (Some("&")) (None::<Html>) "</p>"];
        let text = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=x \\u{1b}[2J\\u{202e}";
        assert_eq!(page.into_string(), format!("<p title=\"{text}\">{text}<b>3</b>&amp;</p>"));
    }
}
