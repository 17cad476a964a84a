//! A task whose prompts ask for reviews of things in various colors.

use std::path::Path;

use gradus::data::RowLocation;
use gradus::metric::MetricConfig;
use gradus::task::{Files, Origin, Sample, Split, Task};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, json};

/// One prompt for each color and thing.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Reviews {
    /// Things to review.
    pub things: Vec<String>,
    /// Colors of the things. Default: red and blue.
    #[serde(default = "colors")]
    pub colors: Vec<String>,
}

fn colors() -> Vec<String> {
    ["red", "blue"].map(String::from).to_vec()
}

impl Task for Reviews {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Generated
    }

    fn samples(&self, files: &Files<'_>) -> gradus::Result<Vec<(RowLocation, Sample)>> {
        let pairs = self.things.iter().flat_map(|thing| self.colors.iter().map(move |color| (thing, color)));
        // Every third prompt is held out for evaluations.
        let held_out = files.split() != Split::Train;
        let pairs = pairs.enumerate().filter(|(i, _)| (i % 3 == 2) == held_out);
        let file = Path::new("reviews").into();
        let sample = |(i, (thing, color)): (usize, (&String, &String))| {
            let sample = Sample {
                prompt: format!("write a review of the {color} {thing} :"),
                references: vec![format!("the {thing} is {color} .")],
                metadata: Map::from_iter([("color".to_owned(), json!(color))]),
            };
            (RowLocation { file: std::sync::Arc::clone(&file), line: i + 1, row_in_array: None }, sample)
        };
        Ok(pairs.map(sample).collect())
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        gradus::metric::configure(&["rouge".to_owned()], &[]).expect("a metric's name")
    }
}
