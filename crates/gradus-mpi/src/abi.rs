//! The functions and constants of MPI that this crate uses, in the three existing binary interfaces.
//!
//! The functions have the same names and parameters everywhere. The handles differ: integers in MPICH 3 and 4, pointers to library objects
//! in Open MPI, and pointers with fixed values in the standard interface of MPI 5.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;

/// A message in transit.
pub trait Request {
    /// Whether the message has arrived.
    ///
    /// # Errors
    /// Returns the error that the library reports.
    fn is_done(&mut self) -> Result<bool, String>;
}

/// An open library.
///
/// # Safety
/// Buffers passed to [`send`](Self::send) and [`receive`](Self::receive) must stay in place until the request is done, or forever.
pub trait Engine: Send + Sync {
    /// Initializes MPI. Returns whether any thread may call it from now on, one at a time.
    fn init(&self) -> Result<bool, String>;
    fn place(&self) -> Result<(usize, usize), String>;
    fn send(&self, bytes: &[u8], to: usize, tag: c_int) -> Result<Box<dyn Request>, String>;
    fn receive(&self, bytes: &mut [u8], from: usize, tag: c_int) -> Result<Box<dyn Request>, String>;
    fn abort(&self, code: i32);
    fn finalize(&self) -> Result<(), String>;
}

/// Longer than any text that a library writes.
const TEXT: usize = 8192;

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Number<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type SetErrorHandler<H> = unsafe extern "C" fn(H, H) -> c_int;
type Send_<H> = unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Receive<H> = unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Test<H> = unsafe extern "C" fn(*mut H, *mut c_int, *mut c_void) -> c_int;
type Abort<H> = unsafe extern "C" fn(H, c_int) -> c_int;
type Nothing = unsafe extern "C" fn() -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type AbiVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;

/// Constants whose values differ between the interfaces.
#[derive(Clone, Copy)]
struct Constants<H> {
    world: H,
    byte: H,
    errors_return: H,
    no_request: H,
    /// `MPI_THREAD_SERIALIZED`: any thread may call MPI, one at a time.
    serialized: c_int,
    no_status: *mut c_void,
}

/// Functions of a library whose handles are `H`.
struct FunctionTable<H> {
    constants: Constants<H>,
    init: Init,
    rank: Number<H>,
    size: Number<H>,
    set_error_handler: SetErrorHandler<H>,
    send: Send_<H>,
    receive: Receive<H>,
    test: Test<H>,
    abort: Abort<H>,
    finalize: Nothing,
    error_text: ErrorText,
    /// Library that contains the functions. It is never closed, because MPI does not survive that.
    _library: &'static Library,
}

// SAFETY: the table is read-only, and its pointers are constants. `Mpi` locks its engine, so only one thread calls at a time.
unsafe impl<H> Send for FunctionTable<H> {}
// SAFETY: as above.
unsafe impl<H> Sync for FunctionTable<H> {}

/// Binary interface of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// The standard interface of MPI 5.
    Standard,
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH 3 and 4, Intel MPI, MVAPICH.
    Mpich,
}

impl Abi {
    /// Finds out the interface of `library`, which was opened by `path`, from its functions and objects.
    ///
    /// # Errors
    /// Returns the name of a missing function if it is not an MPI library.
    pub fn of(library: &Library, path: &str) -> Result<Self, String> {
        // SAFETY: the symbol is not used.
        let has = |name: &str| unsafe { library.get::<*const c_void>(name) }.is_ok();
        // SAFETY: the function has this type in every interface.
        let is_standard = match unsafe { library.get::<AbiVersion>("MPI_Abi_get_version") } {
            Ok(version) => {
                let (mut major, mut minor) = (0, 0);
                // SAFETY: the function may be called before the library is initialized. Other interfaces set -1.
                let code = unsafe { version(&mut major, &mut minor) };
                code == 0 && major > 0
            }
            // The first libraries of this interface lack the function.
            Err(_) => Path::new(path).file_name().is_some_and(|name| name.to_string_lossy().starts_with("libmpi_abi")),
        };
        match () {
            () if !has("MPI_Get_library_version") => Err("it has no `MPI_Get_library_version`".to_owned()),
            () if is_standard => Ok(Self::Standard),
            () if has("ompi_mpi_comm_world") => Ok(Self::OpenMpi),
            () => Ok(Self::Mpich),
        }
    }

    /// Looks up the functions of `library`, which must have this interface. Also returns the first line of its version text.
    ///
    /// # Errors
    /// Returns the name of a missing function.
    pub fn engine(self, library: Library) -> Result<(Box<dyn Engine>, String), String> {
        let library: &'static Library = Box::leak(Box::new(library));
        let pointer = |value: usize| ptr::without_provenance_mut::<c_void>(value);
        let (engine, text): (Box<dyn Engine>, Text) = match self {
            Self::Standard => {
                let constants = Constants {
                    world: pointer(0x101),
                    byte: pointer(0x247),
                    errors_return: pointer(0x143),
                    no_request: pointer(0x180),
                    serialized: 2048,
                    no_status: ptr::null_mut(),
                };
                (Box::new(FunctionTable::find(library, constants)?), function(library, "MPI_Get_library_version")?)
            }
            Self::OpenMpi => {
                let object = |name: &str| function::<*mut c_void>(library, name);
                let constants = Constants {
                    world: object("ompi_mpi_comm_world")?,
                    byte: object("ompi_mpi_byte")?,
                    errors_return: object("ompi_mpi_errors_return")?,
                    no_request: object("ompi_request_null")?,
                    serialized: 2,
                    no_status: ptr::null_mut(),
                };
                (Box::new(FunctionTable::find(library, constants)?), function(library, "MPI_Get_library_version")?)
            }
            Self::Mpich => {
                let constants: Constants<c_int> = Constants {
                    world: 0x4400_0000,
                    byte: 0x4c00_010d,
                    errors_return: 0x5400_0001,
                    no_request: 0x2c00_0000,
                    serialized: 2,
                    no_status: pointer(1),
                };
                (Box::new(FunctionTable::find(library, constants)?), function(library, "MPI_Get_library_version")?)
            }
        };
        // SAFETY: the function may be called before the library is initialized, and the buffer is as long as its longest text.
        let version = read_text(|buffer, length| unsafe { text(buffer, length) });
        Ok((engine, version.lines().next().unwrap_or_default().trim().to_owned()))
    }
}

/// Returns the address of a symbol, as a function or as a pointer to an object.
fn function<F: Copy>(library: &'static Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller passes a symbol of MPI with its type in this interface.
    unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|_| format!("it has no `{name}`"))
}

fn read_text(fill: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut buffer, mut length) = (vec![0u8; TEXT], 0);
    fill(buffer.as_mut_ptr().cast(), &mut length);
    let length = usize::try_from(length).unwrap_or(0).min(TEXT);
    String::from_utf8_lossy(&buffer[..length]).trim_end_matches('\0').trim().to_owned()
}

impl<H: Copy + PartialEq + 'static> FunctionTable<H> {
    fn find(library: &'static Library, constants: Constants<H>) -> Result<Self, String> {
        Ok(Self {
            constants,
            init: function(library, "MPI_Init_thread")?,
            rank: function(library, "MPI_Comm_rank")?,
            size: function(library, "MPI_Comm_size")?,
            set_error_handler: function(library, "MPI_Comm_set_errhandler")?,
            send: function(library, "MPI_Isend")?,
            receive: function(library, "MPI_Irecv")?,
            test: function(library, "MPI_Test")?,
            abort: function(library, "MPI_Abort")?,
            finalize: function(library, "MPI_Finalize")?,
            error_text: function(library, "MPI_Error_string")?,
            _library: library,
        })
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the buffer is as long as the longest text.
        let text = read_text(|buffer, length| unsafe { (self.error_text)(code, buffer, length) });
        Err(if text.is_empty() { format!("error {code}") } else { text })
    }

    fn request(&self, code: c_int, handle: H) -> Result<Box<dyn Request>, String> {
        self.check(code)?;
        let Constants { no_status, .. } = self.constants;
        Ok(Box::new(Pending { handle, test: self.test, no_status, error_text: self.error_text }))
    }
}

impl<H: Copy + PartialEq + 'static> Engine for FunctionTable<H> {
    fn init(&self) -> Result<bool, String> {
        let mut provided = 0;
        // SAFETY: MPI accepts null for the program's arguments.
        self.check(unsafe { (self.init)(ptr::null_mut(), ptr::null_mut(), self.constants.serialized, &mut provided) })?;
        // SAFETY: the handles belong to this library.
        self.check(unsafe { (self.set_error_handler)(self.constants.world, self.constants.errors_return) })?;
        Ok(provided >= self.constants.serialized)
    }

    fn place(&self) -> Result<(usize, usize), String> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the library is initialized.
        self.check(unsafe { (self.rank)(self.constants.world, &mut rank) })?;
        // SAFETY: as above.
        self.check(unsafe { (self.size)(self.constants.world, &mut size) })?;
        Ok((usize::try_from(rank).unwrap_or(0), usize::try_from(size).unwrap_or(1)))
    }

    fn send(&self, bytes: &[u8], to: usize, tag: c_int) -> Result<Box<dyn Request>, String> {
        let Constants { world, byte, no_request, .. } = self.constants;
        let mut handle = no_request;
        let (at, count) = (bytes.as_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the buffer outlives the request (see the trait), and its length fits (`LONGEST`).
        let code = unsafe { (self.send)(at, count, byte, to as c_int, tag, world, &mut handle) };
        self.request(code, handle)
    }

    fn receive(&self, bytes: &mut [u8], from: usize, tag: c_int) -> Result<Box<dyn Request>, String> {
        let Constants { world, byte, no_request, .. } = self.constants;
        let mut handle = no_request;
        let (at, count) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the buffer outlives the request (see the trait), and its length fits (`LONGEST`).
        let code = unsafe { (self.receive)(at, count, byte, from as c_int, tag, world, &mut handle) };
        self.request(code, handle)
    }

    fn abort(&self, code: i32) {
        // SAFETY: the library is initialized. The call does not return.
        unsafe { (self.abort)(self.constants.world, code) };
    }

    fn finalize(&self) -> Result<(), String> {
        // SAFETY: the library is initialized, and no request is pending.
        self.check(unsafe { (self.finalize)() })
    }
}

/// A message in transit, over a library whose handles are `H`.
struct Pending<H> {
    handle: H,
    test: Test<H>,
    no_status: *mut c_void,
    error_text: ErrorText,
}

impl<H> Request for Pending<H> {
    fn is_done(&mut self) -> Result<bool, String> {
        let mut done = 0;
        // SAFETY: the request belongs to this library. It is not tested again after it is done.
        let code = unsafe { (self.test)(&mut self.handle, &mut done, self.no_status) };
        if code == 0 {
            return Ok(done != 0);
        }
        // SAFETY: the buffer is as long as the longest text.
        Err(read_text(|buffer, length| unsafe { (self.error_text)(code, buffer, length) }))
    }
}
