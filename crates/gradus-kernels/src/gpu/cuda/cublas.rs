//! Products by cuBLASLt, which is loaded at its first use. If it is missing or rejects a product, other kernels multiply.
//!
//! CubeCL does not expose the stream of its kernels. So a product waits for all earlier work of the context, and all later work waits for
//! the product. `cuCtxRecordEvent` and `cuCtxWaitEvent` do this, from CUDA 12.4.
//!
//! CubeCL's own thread queues the product, in order with CubeCL's kernels. So the calling thread never waits for it.
//!
//! The same product always gives the same bits. Each kind of product has one algorithm, whatever the addresses are. Algorithms that sum
//! parts of the inner dimension separately are excluded.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::cuda::CudaRuntime;
use cubecl::device_handle::DeviceHandle;
use cubecl::server::{BufferBinding, Handle, ServerStorage};
use libloading::Library;

use crate::cuda;
use crate::gpu::finish::{Destination, Finish};
use crate::gpu::{empty, empty_f32};
use crate::product::Precision;

/// CubeCL's server for CUDA.
type Server = <CudaRuntime as cubecl::__private::Runtime>::Server;
type Pointer = *mut c_void;

/// Bytes of scratch memory for a product.
const WORKSPACE: usize = 32 << 20;

/// `CUDA_R_32F`, `CUDA_R_16BF` and `CUBLAS_COMPUTE_32F`: f32 is not shortened to TF32.
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
/// Attributes of a product: transposition of each operand.
const TRANSPOSED_A: c_int = 3;
const TRANSPOSED_B: c_int = 4;
/// Attributes of a matrix: matrices per batch, and numbers from one matrix to the next.
const BATCH_COUNT: c_int = 5;
const BATCH_STRIDE: c_int = 6;
/// Attributes of a search: bytes of workspace, allowed reduction schemes, and alignments of operands and result.
const MOST_WORKSPACE: c_int = 1;
const REDUCTIONS: c_int = 3;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];

/// Attributes of an algorithm: parts of the inner dimension, and how their sums are added.
const PARTS: c_int = 2;
const REDUCTION: c_int = 3;
/// Algorithms that are considered for a product, the fastest first.
const CONSIDERED: usize = 16;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct HeuristicResult {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Declares functions of a library with their types, and a constructor that looks them up.
macro_rules! functions {
    ($name:ident { $($field:ident: $symbol:literal ($($argument:ty),*);)* }) => {
        struct $name {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Keeps the library open as long as its functions are used.
            _library: Library,
        }

        impl $name {
            fn new(library: Library) -> Option<Self> {
                // SAFETY: the functions have these types (cublasLt.h, cuda.h), and the library stays open.
                unsafe { Some(Self { $($field: *library.get(concat!($symbol, "\0").as_bytes()).ok()?,)* _library: library }) }
            }
        }
    };
}

functions!(Lt {
    create: "cublasLtCreate" (*mut Pointer);
    new_product: "cublasLtMatmulDescCreate" (*mut Pointer, c_int, c_int);
    set_product: "cublasLtMatmulDescSetAttribute" (Pointer, c_int, *const c_void, usize);
    new_matrix: "cublasLtMatrixLayoutCreate" (*mut Pointer, c_int, u64, u64, i64);
    set_matrix: "cublasLtMatrixLayoutSetAttribute" (Pointer, c_int, *const c_void, usize);
    new_search: "cublasLtMatmulPreferenceCreate" (*mut Pointer);
    set_search: "cublasLtMatmulPreferenceSetAttribute" (Pointer, c_int, *const c_void, usize);
    end_search: "cublasLtMatmulPreferenceDestroy" (Pointer);
    search: "cublasLtMatmulAlgoGetHeuristic"
        (Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut HeuristicResult, *mut c_int);
    algorithm: "cublasLtMatmulAlgoConfigGetAttribute" (*const [u64; 8], c_int, *mut c_void, usize, *mut usize);
    multiply: "cublasLtMatmul" (
        Pointer, Pointer, *const c_void, *const c_void, Pointer, *const c_void, Pointer, *const c_void, *const c_void, Pointer,
        *mut c_void, Pointer, *const [u64; 8], *mut c_void, usize, Pointer
    );
});

functions!(Driver {
    device: "cuDeviceGet" (*mut c_int, c_int);
    context: "cuDevicePrimaryCtxRetain" (*mut Pointer, c_int);
    set_context: "cuCtxSetCurrent" (Pointer);
    new_stream: "cuStreamCreate" (*mut Pointer, u32);
    new_event: "cuEventCreate" (*mut Pointer, u32);
    record_context: "cuCtxRecordEvent" (Pointer, Pointer);
    context_waits: "cuCtxWaitEvent" (Pointer, Pointer);
    record: "cuEventRecord" (Pointer, Pointer);
    stream_waits: "cuStreamWaitEvent" (Pointer, Pointer, u32);
});

/// A kind of product, with sizes in cuBLASLt's column-major order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    transposed: [bool; 2],
    is_narrow: bool,
    /// Whether the result is in bf16, too.
    is_result_narrow: bool,
    /// Alignments of both operands, of what is added and of the result, in bytes.
    alignments: [u32; 4],
}

/// Factors of a product and of what is added to it.
#[derive(Debug, Clone, Copy)]
struct Factors {
    product: f32,
    added: f32,
}

/// Objects that are created once per kind of product and never changed.
#[derive(Clone, Copy)]
struct Plan {
    product: Pointer,
    a: Pointer,
    b: Pointer,
    out: Pointer,
    algorithm: [u64; 8],
}

// SAFETY: the objects may be used from any thread.
unsafe impl Send for Plan {}

/// A product that can be queued: its operands, what is added, its result and the workspace.
struct Queued {
    plan: Plan,
    buffers: [BufferBinding; 5],
    factors: Factors,
}

/// cuBLASLt on one GPU.
struct OnDevice {
    lt: Lt,
    driver: Driver,
    handle: Pointer,
    context: Pointer,
    stream: Pointer,
    /// Event after all earlier work, and event after the product.
    events: [Pointer; 2],
    workspace: Handle,
    /// CubeCL's thread for this GPU.
    server: DeviceHandle<Server>,
    /// Status of the first call that failed on that thread.
    failure: AtomicI32,
    /// Plans by kind; `None` if cuBLASLt rejects the kind.
    plans: Mutex<HashMap<Kind, Option<Plan>>>,
}

// SAFETY: objects of cuBLASLt and the driver may be used from any thread. Plans are not changed after they are made, and only CubeCL's
// thread uses the stream, the events and the workspace.
unsafe impl Send for OnDevice {}
// SAFETY: as above.
unsafe impl Sync for OnDevice {}

/// Converts a status to a result.
fn result(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// Converts a status to `Some` for success and `None` for an error.
fn done(status: c_int) -> Option<()> {
    result(status).ok()
}

impl OnDevice {
    fn new(like: &CubeTensor, number: usize) -> Option<Self> {
        let lt = Lt::new(cuda::open(&cuda::names("cublasLt"))?)?;
        let driver = Driver::new(cuda::driver()?)?;
        let mut pointers = [std::ptr::null_mut(); 5];
        let [handle, context, stream, before, after] = &mut pointers;
        let mut device = 0;
        // Events are cheaper without timing.
        const NO_TIMES: u32 = 2;
        const NOT_BLOCKING: u32 = 1;
        // SAFETY: the calls write to variables of their types. CubeCL uses the same primary context, which therefore stays alive.
        unsafe {
            done((driver.device)(&mut device, c_int::try_from(number).ok()?))?;
            done((driver.context)(context, device))?;
            done((driver.set_context)(*context))?;
            done((driver.new_stream)(stream, NOT_BLOCKING))?;
            done((driver.new_event)(before, NO_TIMES))?;
            done((driver.new_event)(after, NO_TIMES))?;
            done((lt.create)(handle))?;
        }
        let [handle, context, stream, before, after] = pointers;
        let workspace = empty_f32(like, &[WORKSPACE / 4]).handle;
        let server = DeviceHandle::new(like.client.service_id().device);
        let (events, failure, plans) = ([before, after], AtomicI32::new(0), Mutex::default());
        Some(Self { lt, driver, handle, context, stream, events, workspace, server, failure, plans })
    }

    fn plan(&self, kind: Kind) -> Option<Plan> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        *plans.entry(kind).or_insert_with(|| self.planned(kind))
    }

    fn planned(&self, kind: Kind) -> Option<Plan> {
        let Kind { m, n, k, batch, transposed, is_narrow, is_result_narrow, alignments } = kind;
        let [dtype, of_result] = [is_narrow, is_result_narrow].map(|is_narrow| if is_narrow { R_16BF } else { R_32F });
        let matrix = |dtype: c_int, rows: usize, columns: usize| {
            let (mut layout, stride) = (std::ptr::null_mut(), (rows * columns) as i64);
            let count = c_int::try_from(batch).ok()?;
            // SAFETY: attributes have the types and sizes that cublasLt.h gives them.
            unsafe {
                done((self.lt.new_matrix)(&mut layout, dtype, rows as u64, columns as u64, rows as i64))?;
                done((self.lt.set_matrix)(layout, BATCH_COUNT, (&raw const count).cast(), size_of_val(&count)))?;
                done((self.lt.set_matrix)(layout, BATCH_STRIDE, (&raw const stride).cast(), size_of_val(&stride)))?;
            }
            Some(layout)
        };
        let sides = |is_transposed: bool, rows: usize, columns: usize| {
            if is_transposed { (columns, rows) } else { (rows, columns) }
        };
        let ((a_rows, a_columns), (b_rows, b_columns)) = (sides(transposed[0], m, k), sides(transposed[1], k, n));
        let (a, b, out) =
            (matrix(dtype, a_rows, a_columns)?, matrix(dtype, b_rows, b_columns)?, matrix(of_result, m, n)?);
        let (mut product, mut search) = (std::ptr::null_mut(), std::ptr::null_mut());
        let none = HeuristicResult { algorithm: [0; 8], workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let mut found = [none; CONSIDERED];
        let mut count = 0;
        // SAFETY: as above; there is space for the requested results.
        unsafe {
            done((self.driver.set_context)(self.context))?;
            done((self.lt.new_product)(&mut product, COMPUTE_32F, R_32F))?;
            for (attribute, is_transposed) in [(TRANSPOSED_A, transposed[0]), (TRANSPOSED_B, transposed[1])] {
                let operation = c_int::from(is_transposed);
                done((self.lt.set_product)(
                    product,
                    attribute,
                    (&raw const operation).cast(),
                    size_of_val(&operation),
                ))?;
            }
            done((self.lt.new_search)(&mut search))?;
            let most = WORKSPACE;
            done((self.lt.set_search)(search, MOST_WORKSPACE, (&raw const most).cast(), size_of_val(&most)))?;
            let none = 0u32;
            done((self.lt.set_search)(search, REDUCTIONS, (&raw const none).cast(), size_of_val(&none)))?;
            for (attribute, bytes) in ALIGNMENTS.into_iter().zip(alignments) {
                done((self.lt.set_search)(search, attribute, (&raw const bytes).cast(), size_of_val(&bytes)))?;
            }
            let status = (self.lt.search)(
                self.handle,
                product,
                a,
                b,
                out,
                out,
                search,
                CONSIDERED as c_int,
                found.as_mut_ptr(),
                &mut count,
            );
            done((self.lt.end_search)(search))?;
            done(status)?;
        }
        let found = found.iter().take(usize::try_from(count).ok()?);
        let best = found.filter(|found| found.state == 0).find(|found| self.sums_in_order(&found.algorithm))?;
        Some(Plan { product, a, b, out, algorithm: best.algorithm })
    }

    /// Whether an algorithm sums the inner dimension as a whole. Parts of it would be added in the order in which they finish.
    fn sums_in_order(&self, algorithm: &[u64; 8]) -> bool {
        let of = |attribute: c_int| {
            let (mut value, mut written) = (0u32, 0);
            // SAFETY: both attributes are 32-bit numbers.
            let status = unsafe {
                (self.lt.algorithm)(algorithm, attribute, (&raw mut value).cast(), size_of_val(&value), &mut written)
            };
            done(status).map(|()| value)
        };
        of(PARTS).is_none_or(|parts| parts <= 1) && of(REDUCTION).is_none_or(|scheme| scheme == 0)
    }

    /// Runs products one after the other on CubeCL's thread. The stream waits for CubeCL's once, and CubeCL's for it once.
    fn run(&self, products: Vec<Queued>, server: &mut Server) -> Result<(), c_int> {
        let [before, after] = self.events;
        // SAFETY: the events, the stream and the context live as long as this object.
        unsafe {
            result((self.driver.set_context)(self.context))?;
            result((self.driver.record_context)(self.context, before))?;
            result((self.driver.stream_waits)(self.stream, before, 0))?;
        }
        products.into_iter().try_for_each(|product| self.multiply(product, server))?;
        // SAFETY: as above.
        unsafe {
            result((self.driver.record)(after, self.stream))?;
            result((self.driver.context_waits)(self.context, after))
        }
    }

    /// Queues a product. The operands are in column-major order, as cuBLASLt expects.
    fn multiply(&self, Queued { plan, buffers, factors }: Queued, server: &mut Server) -> Result<(), c_int> {
        let stream = buffers[3].stream;
        // The resources keep their memory in place until the product is queued.
        let resources = buffers.map(|buffer| server.get_resource(buffer, stream));
        let mut pointers = [std::ptr::null_mut(); 5];
        for (pointer, resource) in pointers.iter_mut().zip(&resources) {
            let resource = resource.as_ref().map_err(|_| UNRESOLVED)?;
            *pointer = resource.resource().ptr as Pointer;
        }
        let [a, b, added, out, workspace] = pointers;
        // SAFETY: the pointers refer to memory of the sizes in the plan. Earlier reads and writes of that memory are finished, and later
        // ones wait.
        unsafe {
            result((self.lt.multiply)(
                self.handle,
                plan.product,
                (&raw const factors.product).cast(),
                a,
                plan.a,
                b,
                plan.b,
                (&raw const factors.added).cast(),
                added,
                plan.out,
                out,
                plan.out,
                &plan.algorithm,
                workspace,
                WORKSPACE,
                self.stream,
            ))
        }
    }
}

/// Status if CubeCL does not find the memory of a tensor. cuBLASLt and the driver have positive statuses.
const UNRESOLVED: c_int = -1;

/// cuBLASLt by GPU number; `None` if it is not available.
static DEVICES: LazyLock<Mutex<HashMap<usize, Option<Arc<OnDevice>>>>> = LazyLock::new(Mutex::default);

/// Computes `op(a) · op(b)` with sums in f32, where `op` transposes the operands marked in `transposed`. The operands are matrices, or
/// batches of equally many matrices without gaps, both in f32 or both in bf16. `None` without cuBLASLt.
///
/// # Panics
/// If an earlier product failed after it was queued.
pub(crate) fn multiply(a: &CubeTensor, b: &CubeTensor, transposed: [bool; 2], finish: &Finish) -> Option<CubeTensor> {
    let lt = of_device(a)?;
    let (product, out) = lt.product(a, b, transposed, finish)?;
    lt.submit(vec![product]);
    Some(out)
}

/// As [`multiply`], for several right operands, with results written in `result`. The GPU changes between cuBLASLt's stream and CubeCL's only
/// once.
///
/// # Panics
/// As [`multiply`].
pub(crate) fn multiply_each<const N: usize>(
    a: &CubeTensor,
    each: [&CubeTensor; N],
    transposed: [bool; 2],
    result: Precision,
) -> Option<[CubeTensor; N]> {
    let lt = of_device(a)?;
    let finish = Finish::written_in(result);
    let products: Option<Vec<_>> = each.iter().map(|b| lt.product(a, b, transposed, &finish)).collect();
    let (products, outs): (Vec<_>, Vec<_>) = products?.into_iter().unzip();
    lt.submit(products);
    outs.try_into().ok()
}

/// Returns cuBLASLt on the device of `a`.
///
/// # Panics
/// If an earlier product failed after it was queued.
fn of_device(a: &CubeTensor) -> Option<Arc<OnDevice>> {
    let CubeDevice::Cuda(device) = &a.device else { return None };
    let lt = {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || OnDevice::new(a, device.index).map(Arc::new);
        devices.entry(device.index).or_insert_with(new).clone()?
    };
    let failure = lt.failure.load(Ordering::Relaxed);
    assert!(failure == 0, "an earlier product by cuBLASLt failed with status {failure}: its result is missing");
    Some(lt)
}

impl OnDevice {
    /// Returns what [`multiply`] queues, and its result. `None` if cuBLASLt rejects it.
    fn product(
        &self,
        a: &CubeTensor,
        b: &CubeTensor,
        transposed: [bool; 2],
        finish: &Finish,
    ) -> Option<(Queued, CubeTensor)> {
        let (shape_a, shape_b) = (a.shape().to_vec(), b.shape().to_vec());
        let rank = shape_a.len();
        let side = |shape: &[usize], is_transposed: bool| {
            let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
            if is_transposed { [columns, rows] } else { [rows, columns] }
        };
        let ([rows, inner], [_, columns]) = (side(&shape_a, transposed[0]), side(&shape_b, transposed[1]));
        let batch: usize = shape_a[..rank - 2].iter().product();
        if shape_a[..rank - 2] != shape_b[..rank - 2] {
            return None;
        }
        // Memory of CubeCL begins at multiples of 512 bytes, so the offset of a view and the distance of matrices in a batch determine the
        // alignment. It is capped at 16 bytes, which is enough for every algorithm.
        let alignment = |x: &CubeTensor, of_matrix: usize| {
            let step = if batch > 1 { of_matrix as u64 } else { 0 };
            1 << (x.handle.offset_start.unwrap_or(0) | step).trailing_zeros().min(4)
        };
        let size = a.dtype.size();
        let dtype = finish.dtype(&a.device);
        let [of_a, of_b, of_out] = [inner * rows * size, inner * columns * size, rows * columns * dtype.size()];
        let shape: Vec<usize> = shape_a[..rank - 2].iter().copied().chain([rows, columns]).collect();
        let new = || empty(a, &shape, dtype);
        let (out, sum) = match &finish.destination {
            Destination::New(_) => (new(), None),
            Destination::Plus(sum) => (new(), Some(sum)),
            Destination::Onto(sum) => (sum.clone(), Some(sum)),
        };
        let factors = Factors { product: finish.factor, added: f32::from(u8::from(sum.is_some())) };
        // Without a sum, its factor is 0, and cuBLASLt does not read it.
        let added = sum.unwrap_or(&out);
        // Row-major data are the column-major form of the transpose: (A B)ᵀ = Bᵀ Aᵀ.
        let kind = Kind {
            m: columns,
            n: rows,
            k: inner,
            batch,
            transposed: [transposed[1], transposed[0]],
            is_narrow: a.dtype == DType::BF16,
            is_result_narrow: dtype == DType::BF16,
            alignments: [alignment(b, of_b), alignment(a, of_a), alignment(added, of_out), alignment(&out, of_out)],
        };
        let plan = self.plan(kind)?;
        let handles = [&b.handle, &a.handle, &added.handle, &out.handle, &self.workspace];
        let buffers = handles.map(|handle| handle.clone().binding());
        Some((Queued { plan, buffers, factors }, out))
    }

    /// Lets CubeCL's thread queue products.
    fn submit(self: Arc<Self>, products: Vec<Queued>) {
        let server = self.server.clone();
        server.submit(move |server| {
            if let Err(status) = self.run(products, server) {
                self.failure.store(status, Ordering::Relaxed);
            }
        });
    }
}
