//! Tells the linker where the C library is: under the prefix that it was installed to, which
//! BF16CODECS_C_PREFIX names, or where pkg-config says.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=BF16CODECS_C_PREFIX");
    println!("cargo:rerun-if-env-changed=BF16CODECS_STATIC");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let is_static = env::var_os("BF16CODECS_STATIC").is_some_and(|value| value != "0");
    match folder() {
        Ok(Some(folder)) => println!("cargo:rustc-link-search=native={}", folder.display()),
        Ok(None) => {}
        Err(why) => {
            println!("cargo:warning=the C library of bf16codecs was not found: {why}");
            println!("cargo:warning=install it (docs/howto/c.md), and set BF16CODECS_C_PREFIX");
            std::process::exit(1);
        }
    }
    if !is_static {
        println!("cargo:rustc-link-lib=dylib=bf16codecs");
        return;
    }
    println!("cargo:rustc-link-lib=static=bf16codecs");
    // Inside is C++.
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo:rustc-link-lib=dylib=c++"),
        Ok("windows") => {}
        _ => println!("cargo:rustc-link-lib=dylib=stdc++"),
    }
}

/// The folder of the library, or none if the linker knows it.
fn folder() -> Result<Option<PathBuf>, String> {
    let Some(prefix) = env::var_os("BF16CODECS_C_PREFIX") else {
        return by_pkg_config();
    };
    let prefix = Path::new(&prefix);
    for name in ["lib", "lib64"] {
        let folder = prefix.join(name);
        // Debian has a folder for each architecture in it.
        let inner = folder.read_dir().into_iter().flatten().flatten();
        let mut folders = vec![folder];
        folders.extend(inner.map(|entry| entry.path()).filter(|path| path.is_dir()));
        if let Some(found) = folders.into_iter().find(|folder| has_library(folder)) {
            return Ok(Some(found));
        }
    }
    Err(format!("no libbf16codecs below {}", prefix.display()))
}

fn has_library(folder: &Path) -> bool {
    let names = ["libbf16codecs.so", "libbf16codecs.dylib", "libbf16codecs.a", "bf16codecs.lib"];
    names.iter().any(|name| folder.join(name).exists())
}

fn by_pkg_config() -> Result<Option<PathBuf>, String> {
    let done = Command::new("pkg-config")
        .args(["--print-errors", "--variable=libdir", "bf16codecs"])
        .output()
        .map_err(|error| format!("BF16CODECS_C_PREFIX is not set, and pkg-config: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let first = said.lines().next().unwrap_or("pkg-config fails");
        return Err(format!("BF16CODECS_C_PREFIX is not set: {first}"));
    }
    let folder = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    Ok((!folder.is_empty()).then(|| PathBuf::from(folder)))
}
