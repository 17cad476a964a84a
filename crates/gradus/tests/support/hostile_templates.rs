//! Malicious chat templates: a table of known classes, and random combinations of them.

use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A name for messages, and the template source.
pub type Hostile = (String, String);

/// A namespace that contains itself, in `ns`.
pub const ITSELF: &str = "{% set ns = namespace() %}{% set ns.a = ns %}";

/// Nested lists, in `ns.a`.
const NESTED: &str = "{% set ns = namespace(a=1) %}{% for i in range(30000) %}{% set ns.a = [ns.a] %}{% endfor %}";

/// A long list, in `ns.a`.
const LONG: &str = "{% set ns = namespace(a=[1]) %}{% for i in range(14) %}{% set ns.a = ns.a + ns.a %}{% endfor %}";

/// A few instructions, each of which is slow.
pub const SLOW: &str = "{% set ns = namespace(a=[1]) %}{% for i in range(20) %}{% set ns.a = ns.a + ns.a %}{% endfor %}\
                        {% for i in range(100000) %}{% set x = ns.a | sort | length %}{% endfor %}";

/// Uses of a value, in place of `X`.
const USES: [&str; 66] = [
    "{{ X }}",
    "{{ X | string }}",
    "{{ X | tojson }}",
    "{{ X | tojson(indent=2) }}",
    "{{ X | pprint }}",
    "{{ X ~ '' }}",
    "{{ [X] }}",
    "{{ {'a': X} }}",
    "{{ X == X }}",
    "{{ X == [X] }}",
    "{{ X < X }}",
    "{{ X in [X] }}",
    "{{ [X, X] | sort }}",
    "{{ [X, X] | unique }}",
    "{{ [X, X] | min }}",
    "{{ [X, X] | max }}",
    "{{ [X, X] | join(',') }}",
    "{{ [X] | map('string') | list }}",
    "{{ [X] | select('eq', X) | list }}",
    "{{ [X, X] | groupby('a') }}",
    "{{ [[X, X]] | list | tojson }}",
    "{{ X | length }}",
    "{{ X | list }}",
    "{{ X | items }}",
    "{{ X | dictsort }}",
    "{{ X | first }}",
    "{{ X | last }}",
    "{{ X | reverse }}",
    "{{ X | upper }}",
    "{{ X | trim }}",
    "{{ X | replace('a', 'b') }}",
    "{{ X | default(1) }}",
    "{{ X | urlencode }}",
    "{{ X | e }}",
    "{{ X | batch(2) | list }}",
    "{{ X | slice(2) | list }}",
    "{{ X | sum }}",
    "{{ X | int }}",
    "{{ X | bool }}",
    "{{ X | indent(4) }}",
    "{{ X | lines }}",
    "{{ X | split }}",
    "{{ '%s' | format(X) }}",
    "{{ '{}'.format(X) }}",
    "{{ 'a'.join([X, X]) }}",
    "{{ raise_exception(X | string) }}",
    "{{ raise_exception(X) }}",
    "{{ strftime_now(X) }}",
    "{{ debug() }}",
    "{{ debug(X) }}",
    "{{ dict(a=X) }}",
    "{{ namespace(a=X) }}",
    "{{ range(X) }}",
    "{{ X() }}",
    "{{ X.a.a.a.a }}",
    "{{ X[0] }}",
    "{{ X + X }}",
    "{{ X * 3 }}",
    "{{ X is eq(X) }}",
    "{{ X is sameas(X) }}",
    "{{ X is in([X]) }}",
    "{{ X is mapping }}",
    "{% for y in X %}{{ y }}{% endfor %}",
    "{% for y in X recursive %}{{ loop([y]) }}{% endfor %}",
    "{% if X %}a{% endif %}",
    "{% set y = X %}{% set z = [y, y] %}{{ z }}",
];

/// Expressions that become large in one instruction or a few.
const LARGE: [&str; 24] = [
    "{{ [1] | batch(999999999, 0) }}",
    "{{ [1] | batch(999999999, 0) | list | length }}",
    "{{ [1] | slice(999999999) | list | length }}",
    "{{ [1] | slice(999999999, 0) | list | length }}",
    "{{ range(999999999) | list | length }}",
    "{{ range(99999) | list | tojson | length }}",
    "{{ ('a' * 99999999999) | length }}",
    "{{ ([1] * 99999999999) | length }}",
    "{{ (['a' * 1000000] * 100000) | join | length }}",
    "{{ (['a' * 1000000] * 100000) | join('b') | upper | length }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) | length }}",
    "{{ ('a' * 1000000) | replace('', 'b' * 100000) | length }}",
    "{{ ('a' * 1000000).split('') | length }}",
    "{{ ('a' * 1000).join(['b'] * 100000000) | length }}",
    "{{ 'a'.center(99999999999) }}",
    "{{ 'a'.ljust(99999999999) }}",
    "{{ 'a'.rjust(99999999999) }}",
    "{{ 'a'.zfill(99999999999) }}",
    "{{ 'a'.expandtabs(99999999999) }}",
    "{{ 9 ** 999999999 }}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = ns.x + [1] %}{% endfor %}{{ ns.x | pprint }}",
];

/// Repetitions in a source: a beginning, the repeated part, the middle, the part repeated after it, the end.
const CHAINS: [[&str; 5]; 34] = [
    ["{{ ", "-", "1", "", " }}"],
    ["{{ ", "not ", "1", "", " }}"],
    ["{{ ", "", "1", "+1", " }}"],
    ["{{ ", "", "1", "-1", " }}"],
    ["{{ ", "", "1", "*1", " }}"],
    ["{{ ", "", "1", "/1", " }}"],
    ["{{ ", "", "1", "//1", " }}"],
    ["{{ ", "", "1", "%1", " }}"],
    ["{{ ", "", "1", "**1", " }}"],
    ["{{ ", "", "1", "~1", " }}"],
    ["{{ ", "", "1", "==1", " }}"],
    ["{{ ", "", "1", "<1", " }}"],
    ["{{ ", "", "1", " and 1", " }}"],
    ["{{ ", "", "0", " or 0", " }}"],
    ["{{ ", "", "1", " in []", " }}"],
    ["{{ ", "", "messages", ".a", " }}"],
    ["{{ ", "", "messages", "[0]", " }}"],
    ["{{ ", "", "messages", "[0:]", " }}"],
    ["{{ ", "", "messages", "()", " }}"],
    ["{{ ", "", "messages", "|list", " }}"],
    ["{{ ", "", "messages", " is defined", " }}"],
    ["{{ ", "", "1", " if 1", " }}"],
    ["{{ ", "1 if 0 else ", "1", "", " }}"],
    ["{{ ", "(", "1", ")", " }}"],
    ["{{ ", "[", "1", "]", " }}"],
    ["{{ ", "{'a':", "1", "}", " }}"],
    ["{{ ", "f(", "1", ")", " }}"],
    ["{{ ", "messages[", "0", "]", " }}"],
    ["{% if 0 %}", "{% elif 0 %}", "", "", "{% endif %}"],
    ["", "{% if 1 %}", "a", "{% endif %}", ""],
    ["", "{% for x in [1] %}", "a", "{% endfor %}", ""],
    ["", "{% filter upper %}", "a", "{% endfilter %}", ""],
    ["", "{% macro m() %}", "a", "{% endmacro %}", ""],
    ["", "{% set x %}", "a", "{% endset %}", ""],
];

/// Returns a chain of `links` links, limited to the maximum length of a template.
fn chain([before, left, middle, right, after]: [&str; 5], links: usize) -> String {
    let links = links.min(1_000_000 / (left.len() + right.len()));
    format!("{before}{}{middle}{}{after}", left.repeat(links), right.repeat(links))
}

fn first_words(source: &str) -> String {
    source.chars().take(40).collect()
}

/// Returns one template of each class.
pub fn all() -> Vec<Hostile> {
    let mut all = Vec::new();
    for parts in CHAINS {
        for links in [7_000, 400_000] {
            all.push((format!("{links} of {}{}", parts[1], parts[3]), chain(parts, links)));
        }
    }
    for (kind, setup, value) in [("itself", ITSELF, "ns"), ("nested", NESTED, "ns.a"), ("long", LONG, "ns.a")] {
        all.extend(USES.iter().map(|of| (format!("{kind} {of}"), format!("{setup}{}", of.replace('X', value)))));
    }
    all.push(("nested, dropped".into(), NESTED.into()));
    all.extend(LARGE.iter().map(|source| (first_words(source), (*source).to_owned())));
    all.push(("slow".into(), SLOW.into()));
    all
}

/// Composes templates of the classes, reproducible by seed.
pub struct Composer(ChaCha8Rng);

impl Composer {
    /// Creates a composer with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns the next template, with one to three statements.
    pub fn next(&mut self) -> String {
        (0..self.0.random_range(1..4)).map(|_| self.statement()).collect()
    }

    fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of.choose(&mut self.0).expect("not empty")
    }

    fn statement(&mut self) -> String {
        match self.0.random_range(0..8) {
            0 => {
                let links = 1 << self.0.random_range(0..19);
                chain(*CHAINS.choose(&mut self.0).expect("not empty"), links)
            }
            1 => self.pick(&LARGE).to_owned(),
            2 => {
                // A chain around a use of a value.
                let links = 1 << self.0.random_range(0..12);
                let [before, left, _, right, after] = *CHAINS.choose(&mut self.0).expect("not empty");
                let value = self.value();
                format!("{}{}", value.0, chain([before, left, &value.1, right, after], links))
            }
            3 => {
                // Inside a loop, which multiplies small costs.
                let (rounds, inner) = (1 << self.0.random_range(0..14), self.statement());
                format!("{{% for i in range({rounds}) %}}{inner}{{% endfor %}}")
            }
            _ => {
                let (setup, value) = self.value();
                let uses: String =
                    (0..self.0.random_range(1..4)).map(|_| self.pick(&USES).replace('X', &value)).collect();
                setup + &uses
            }
        }
    }

    /// Returns the setup of a value, and its name.
    fn value(&mut self) -> (String, String) {
        let (rounds, width) = (1 << self.0.random_range(0..15), self.0.random_range(1..4));
        let of = |what: &str| vec![what; width].join(", ");
        let (first, step) = match self.0.random_range(0..7) {
            0 => return (ITSELF.into(), "ns".into()),
            1 => ("1", format!("[{}]", of("ns.a"))),
            2 => ("1", format!("{{'a': [{}]}}", of("ns.a"))),
            3 => ("'ab'", "ns.a ~ ns.a".into()),
            4 => ("[1]", "ns.a + ns.a".into()),
            5 => ("[1]", "ns.a + [ns]".into()),
            _ => ("messages", "ns.a | list".into()),
        };
        let setup = format!(
            "{{% set ns = namespace(a={first}) %}}{{% for i in range({rounds}) %}}{{% set ns.a = {step} %}}{{% endfor %}}"
        );
        (setup, "ns.a".into())
    }
}
