//! Runs the tests of the Python package with the module that was built for this test.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter: `GRADUS_PYTHON`, or the one in `PATH`.
fn python() -> String {
    std::env::var("GRADUS_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Returns the path of the module, which cargo puts next to the tests.
fn module() -> PathBuf {
    let tests = std::env::current_exe().expect("the system knows this program");
    let folder = tests.parent().expect("target/PROFILE/deps");
    let name = format!("{}_native{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    folder.join(name)
}

/// Whether the interpreter can import `package`.
fn has(package: &str) -> bool {
    let found = Command::new(python()).args(["-c", &format!("import {package}")]).output();
    found.is_ok_and(|found| found.status.success())
}

#[test]
fn the_python_package() {
    for package in ["pytest", "numpy", "pyarrow", "hypothesis"] {
        if !has(package) {
            // Written directly to stderr, past the capture of the test harness, so that it is visible.
            let skipped = format!("skipped: python: {} has no {package}\n", python());
            let _ = std::io::stderr().write_all(skipped.as_bytes());
            assert!(
                !std::env::var("GRADUS_REQUIRE").is_ok_and(|names| names.contains("python")),
                "GRADUS_REQUIRE names python, but {package} is missing"
            );
            return;
        }
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let within = folder.path().join("gradus");
    std::fs::create_dir(&within).expect("a folder");
    for entry in std::fs::read_dir(package.join("python/gradus")).expect("the package") {
        let entry = entry.expect("an entry");
        // Modules that were installed from an older build are left out.
        if !entry.file_name().to_string_lossy().starts_with("_native.") {
            std::os::unix::fs::symlink(entry.path(), within.join(entry.file_name())).expect("a link");
        }
    }
    std::os::unix::fs::symlink(module(), within.join("_native.abi3.so")).expect("a link");
    let mut tests = Command::new(python());
    tests
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests"])
        .current_dir(package)
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GRADUS_CACHE", folder.path().join("cache"))
        .env("HYPOTHESIS_STORAGE_DIRECTORY", folder.path().join("hypothesis"))
        .env("MYPY_CACHE_DIR", folder.path().join("mypy"));
    // The notebooks need real data, like some tests of the other crates.
    let material = package.join("../../../shared/material");
    if std::env::var_os("GRADUS_MATERIAL").is_none() && material.exists() {
        tests.env("GRADUS_MATERIAL", material.canonicalize().expect("a folder"));
    }
    let status = tests.status().expect("pytest");
    assert!(status.success(), "the tests of the Python package failed: {status}");
}
