//! Compiles the GPU kernels for NVIDIA GPUs on a machine without a GPU: CubeCL writes CUDA C++, and NVRTC compiles it.
//!
//! `GRADUS_NVRTC` names a folder with `lib/libnvrtc.so.*` and `include/`, such as `…/site-packages/nvidia/cu13` after
//! `pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl`.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use gradus_kernels::{CudaSource as Source, cuda_sources};
use libloading::Library;

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

/// NVRTC, loaded at run time.
struct Nvrtc {
    library: Library,
    folder: PathBuf,
}

impl Nvrtc {
    /// Loads NVRTC from the folder in `GRADUS_NVRTC`.
    fn new() -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("GRADUS_NVRTC")?);
        let entries = std::fs::read_dir(folder.join("lib")).unwrap_or_else(|error| panic!("GRADUS_NVRTC: {error}"));
        let is_library =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"));
        let library = entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| is_library(path));
        let library = library.expect("GRADUS_NVRTC: no lib/libnvrtc.so.*");
        // SAFETY: loading NVIDIA's compiler runs only its own initialization.
        let library = unsafe { Library::new(&library) }.unwrap_or_else(|error| panic!("GRADUS_NVRTC: {error}"));
        Some(Self { library, folder })
    }

    /// Compiles to assembly for an architecture, or returns the compiler's log.
    fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        type Program = *mut c_void;
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let source = CString::new(source).expect("no zero in a source");
        let include = |folder: &str| format!("--include-path={}", self.folder.join(folder).display());
        let options = [format!("--gpu-architecture={architecture}"), include("include"), include("include/cccl")];
        let options = options.map(|option| CString::new(option).expect("no zero in an option"));
        let options = options.each_ref().map(|option| option.as_ptr());
        // SAFETY: the functions have these types (nvrtc.h). Strings and buffers outlive the calls and have the sizes that NVRTC reports.
        unsafe {
            let get = |name: &CStr| self.library.get::<*const ()>(name.to_bytes_with_nul()).map(|symbol| *symbol);
            let symbol = |name: &CStr| get(name).unwrap_or_else(|error| panic!("{name:?}: {error}"));
            let create: Create = std::mem::transmute(symbol(c"nvrtcCreateProgram"));
            let compile: Compile = std::mem::transmute(symbol(c"nvrtcCompileProgram"));
            let log_size: Size = std::mem::transmute(symbol(c"nvrtcGetProgramLogSize"));
            let log: Text = std::mem::transmute(symbol(c"nvrtcGetProgramLog"));
            let ptx_size: Size = std::mem::transmute(symbol(c"nvrtcGetPTXSize"));
            let ptx: Text = std::mem::transmute(symbol(c"nvrtcGetPTX"));
            let destroy: Destroy = std::mem::transmute(symbol(c"nvrtcDestroyProgram"));
            let mut program: Program = std::ptr::null_mut();
            let (none, empty) = (std::ptr::null(), std::ptr::null());
            assert_eq!(create(&mut program, source.as_ptr(), none, 0, empty, empty), 0, "nvrtcCreateProgram");
            let is_compiled = compile(program, options.len() as c_int, options.as_ptr()) == 0;
            let (size, text) = if is_compiled { (ptx_size, ptx) } else { (log_size, log) };
            let mut length = 0usize;
            assert_eq!(size(program, &mut length), 0, "the size of what NVRTC gives");
            let mut bytes = vec![0u8; length];
            assert_eq!(text(program, bytes.as_mut_ptr().cast()), 0, "what NVRTC gives");
            assert_eq!(destroy(&mut program), 0, "nvrtcDestroyProgram");
            if is_compiled { Ok(bytes) } else { Err(String::from_utf8_lossy(&bytes).into_owned()) }
        }
    }
}

#[test]
fn every_kernel_becomes_cuda_source() {
    let sources = cuda_sources();
    assert!(sources.iter().all(|source| source.text.contains("__global__")), "every source holds a kernel");
    assert!(sources.iter().any(|source| source.name.contains("attention backward") && source.text.contains("bf16")));
}

#[test]
fn every_kernel_compiles_for_ampere_hopper_and_blackwell() {
    let Some(nvrtc) = Nvrtc::new() else {
        return skip::skipped("nvrtc", "kernels compiled for NVIDIA's GPUs: GRADUS_NVRTC names no folder with NVRTC");
    };
    let refused = nvrtc.compile("__global__ void broken() { this is no C++ }", "sm_80");
    assert!(refused.is_err_and(|log| log.contains("error")), "NVRTC refuses what is wrong");
    for Source { name, text } in cuda_sources() {
        for architecture in ["sm_80", "sm_90a", "sm_120"] {
            let ptx = nvrtc.compile(&text, architecture);
            let ptx = ptx.unwrap_or_else(|log| panic!("{name} for {architecture}:\n{log}\n{text}"));
            let ptx = String::from_utf8_lossy(&ptx).into_owned();
            assert!(ptx.contains(".entry") && ptx.contains(architecture), "{name} for {architecture}:\n{ptx}");
        }
    }
}
