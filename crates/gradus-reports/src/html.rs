//! HTML from literals and values. Literals are markup and values are text; a value can never become markup.
//!
//! `html!["<td>" (name) "</td>"]` is the only way to create an [`Html`]. Values in parentheses are escaped, and their control characters
//! and characters that change the text direction are made visible. Line ends of Windows are line ends. An [`Html`] in parentheses is inserted
//! unchanged.

use crate::visible::visible;

/// Safe markup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// Creates empty markup.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds markup, which must be a literal.
    pub fn markup(&mut self, literal: &'static str) {
        self.0.push_str(literal);
    }

    /// Adds a value.
    pub fn add(&mut self, value: &(impl Show + ?Sized)) {
        value.show(self);
    }

    /// Returns the markup as text.
    pub fn into_string(self) -> String {
        self.0
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the markup is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn text(&mut self, text: &str) {
        for c in visible(&text.replace("\r\n", "\n")).chars() {
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

/// Values that can be inserted between tags and in quoted attributes.
pub trait Show {
    /// Appends the value to `html`.
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

/// Creates an [`Html`](crate::html::Html) from literals, which are markup, and values in parentheses, which are escaped.
#[macro_export]
macro_rules! html {
    (@add $html:ident) => {};
    (@add $html:ident $literal:literal $($rest:tt)*) => {
        $html.markup($literal);
        $crate::html!(@add $html $($rest)*);
    };
    (@add $html:ident ($value:expr) $($rest:tt)*) => {
        $html.add(&$value);
        $crate::html!(@add $html $($rest)*);
    };
    (@add $($other:tt)*) => {
        compile_error!("`html!` takes literals, and values in parentheses")
    };
    ($($part:tt)*) => {{
        let mut html = $crate::html::Html::new();
        $crate::html!(@add html $($part)*);
        html
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_markup_and_values_are_text() {
        let hostile = "<script>alert('1')</script>\" onload=x \u{1b}[2J\u{202e}";
        let page = html!["<p title=\"" (hostile) "\">" (hostile) (html!["<b>" (3usize) "</b>"]) (Some("&")) (None::<Html>) "</p>"];
        let text = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=x \\u{1b}[2J\\u{202e}";
        assert_eq!(page.into_string(), format!("<p title=\"{text}\">{text}<b>3</b>&amp;</p>"));
        assert_eq!(html![("a\r\nb\rc")].into_string(), "a\nb\\u{d}c");
    }
}
