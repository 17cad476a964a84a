//! Data sets from files to rows: formats, bad input with the exact messages, the linter, and real data.

mod arrow;
mod bad_input;
mod encoder_decoder;
mod feedback;
mod formats;
mod lints;
mod material;
mod places;
mod tokenizers;
mod words;

use std::path::PathBuf;

use gradus::data::{Dataset, LoadOptions, load};

/// A folder for one test, and files in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(&path, content).expect("written");
        path.to_string_lossy().into_owned()
    }

    /// The error of loading a file with this content, without the folder's path.
    fn error(&self, name: &str, content: impl AsRef<[u8]>, options: &LoadOptions) -> String {
        let path = self.write(name, content);
        self.error_of(&path, options)
    }

    fn error_of(&self, path: &str, options: &LoadOptions) -> String {
        let error = load(path, options).expect_err("bad input").to_string();
        error.replace(&format!("{}/", self.0.path().display()), "").replace(&self.0.path().display().to_string(), ".")
    }

    fn load(&self, name: &str, content: impl AsRef<[u8]>) -> Dataset {
        load(&self.write(name, content), &LoadOptions::default()).expect("good input")
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).and_then(|()| encoder.finish()).expect("compressed in memory")
}
