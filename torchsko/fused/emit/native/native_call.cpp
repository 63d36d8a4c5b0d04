// Call of a kernel without Python code, for small batches, where Python would take most of the time.
//
// Addresses and shapes of tensors are read by the C exchange interface of DLPack 1.x, those of NumPy arrays by Python's
// buffer protocol. Results are made by functions of PyTorch or of NumPy that the caller passes: they are arrays if the
// first input is one. Python floats may replace tensors without dimensions. Only functions of Python's stable ABI are
// called; they are declared here, since not every machine has Python's headers. For unsupported inputs (another dtype or
// device, strides, batches that broadcast or are large enough for several threads) the result is None.
#include <stddef.h>
#include <stdint.h>

struct Object;
struct Buffer {  // Py_buffer
  void* data;
  Object* owner;
  ptrdiff_t bytes, item_bytes;
  int readonly, ndim;
  char* format;
  ptrdiff_t *shape, *strides, *suboffsets;
  void* internal;
};
extern "C" {
int PyObject_GetBuffer(Object*, Buffer*, int flags);
void PyBuffer_Release(Buffer*);
Object* PyObject_Type(Object*);
Object* PyObject_CallFunctionObjArgs(Object*, ...);
Object* PyObject_CallMethodObjArgs(Object*, Object*, ...);
Object* PyTuple_New(ptrdiff_t);
Object* PyTuple_GetItem(Object*, ptrdiff_t);
int PyTuple_SetItem(Object*, ptrdiff_t, Object*);
Object* PyLong_FromLongLong(long long);
char* PyBytes_AsString(Object*);
double PyFloat_AsDouble(Object*);
extern Object PyFloat_Type;
Object* PyErr_NoMemory();
Object* PyEval_SaveThread();  // of type PyThreadState
void PyEval_RestoreThread(Object*);
void PyErr_Clear();
void Py_IncRef(Object*);
void Py_DecRef(Object*);
}

// DLPack, version 1: a view of a tensor, and the functions of the exchange interface.
struct View {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Exchange {
  uint32_t major, minor;
  void *older, *allocate, *take, *give;
  int (*look)(void* object, View* to);  // borrows the data; returns 0, or -1 with an exception set
};
static const int CPU = 1, REAL = 2;

// A kernel and its ports, in 64-bit words; written by `native_call.py`.
struct Port {
  int64_t like;  // of an output: the input of the same shape for one sample, or -1
  int64_t size, rank;
  int64_t shape[4];
};
struct Plan {
  const Exchange* exchange;
  int (*launch)(const void* plan, const void* call, int threads);
  const void* kernel;
  int64_t scratch_bytes;
  int64_t bits, inputs, outputs;
  int64_t rows;        // bound on the number of samples
  int64_t width, rows_per_tile, max_tiles;  // see `Kernel` in kernel.py
  int64_t equal_batches;    // whether all inputs must have the same batch shape
  int64_t releases;         // whether the kernel runs without Python's lock
  Port ports[1];
};
static const int MAX_PORTS = 40;

// True if a tensor has the dtype and shape of a port and dense rows. Strides of dimensions of size 1 are checked as well:
// the imaginary part of a conjugate has stride 2 there, and a negation that PyTorch applies lazily.
static bool fits(const View& x, const Port& port, int64_t bits) {
  if (x.device_type != CPU || x.code != REAL || x.bits != bits || x.lanes != 1) return false;
  if (x.data == nullptr) return false;  // a zero tensor without memory, or an empty tensor
  const int lead = x.ndim - (int)port.rank;
  if (lead < 0) return false;
  int64_t dense = 1;
  for (int k = x.ndim - 1; k >= 0; --k) {
    if (k >= lead && x.shape[k] != port.shape[k - lead]) return false;
    if (x.strides != nullptr && x.strides[k] != dense) return false;
    dense *= x.shape[k];
  }
  return true;
}

static const Object* type_of(Object* x) {
  Object* own = PyObject_Type(x);
  Py_DecRef(own);  // the object holds its type
  return own;
}

static const int MAX_ARRAY_RANK = 8, CONTIGUOUS_WITH_FORMAT = 0x38 | 0x04;

// An array of NumPy whose rows are dense; its shape is copied, since the buffer is released at once.
struct ArrayView : View {
  int64_t sizes[MAX_ARRAY_RANK];
};

static bool look_at_array(Object* x, ArrayView* to) {
  Buffer buffer;
  if (PyObject_GetBuffer(x, &buffer, CONTIGUOUS_WITH_FORMAT) != 0) return false;
  const char kind = buffer.format != nullptr && buffer.format[1] == 0 ? buffer.format[0] : 0;
  const bool is_real = (kind == 'd' || kind == 'f') && buffer.ndim <= MAX_ARRAY_RANK;
  for (int k = 0; is_real && k < buffer.ndim; ++k) to->sizes[k] = buffer.shape[k];
  *(View*)to = {buffer.data, CPU, 0, buffer.ndim, REAL, (uint8_t)(8 * buffer.item_bytes), 1, to->sizes, nullptr, 0};
  PyBuffer_Release(&buffer);
  return is_real;
}

struct Types {
  const Object *tensor, *array;
};

// Reads a tensor or an array; false for other objects and for those without dense real data.
static bool look(const Exchange* exchange, Types types, Object* x, ArrayView* to) {
  const Object* own = type_of(x);
  if (own == types.tensor && exchange->look(x, to) == 0) return true;
  if (own == types.array && look_at_array(x, to)) return true;
  PyErr_Clear();
  return false;
}

static char* start(const View& x) { return (char*)x.data + x.byte_offset; }

static Object* shape_of(const View& batch, int lead, const Port& port) {
  Object* shape = PyTuple_New(lead + port.rank);
  if (shape == nullptr) return nullptr;
  for (int k = 0; k < lead + (int)port.rank; ++k) {
    Object* size = PyLong_FromLongLong(k < lead ? batch.shape[k] : port.shape[k - lead]);
    if (size == nullptr || PyTuple_SetItem(shape, k, size) != 0) {
      Py_DecRef(shape);
      return nullptr;
    }
  }
  return shape;
}

// A new result of a batch, of the dtype of the first input and of its kind, tensor or array; null with an exception set.
static Object* new_result(Object* self, Object* first, bool is_array, const View& batch, int lead, const Port& port) {
  Object* shape = shape_of(batch, lead, port);
  if (shape == nullptr) return nullptr;
  Object* y = is_array ? PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 6), shape, PyTuple_GetItem(self, 7), nullptr)
                       : PyObject_CallMethodObjArgs(first, PyTuple_GetItem(self, 4), shape, nullptr);
  Py_DecRef(shape);
  return y;
}

// Self is (plan, None, torch.Tensor, torch.empty_like, "new_empty", numpy.ndarray, numpy.empty, dtype of NumPy). Returns
// a tuple of results, or None.
extern "C" __attribute__((visibility("default"))) Object* torchsko_native_call(
    Object* self, Object* const* args, ptrdiff_t count) {
  const Plan& plan = *(const Plan*)PyBytes_AsString(PyTuple_GetItem(self, 0));
  Object* none = PyTuple_GetItem(self, 1);
  const Types types = {PyTuple_GetItem(self, 2), PyTuple_GetItem(self, 5)};
  ArrayView x[MAX_PORTS];
  double numbers[MAX_PORTS];
  int64_t words[2 + 2 * MAX_PORTS];
  const int inputs = (int)plan.inputs, outputs = (int)plan.outputs;
  int batched = 0, lead = 0;  // the first input with batch dimensions, and their number
  bool supported = count == inputs;
  for (int k = 0; supported && k < inputs; ++k) {
    words[3 + 2 * k] = 0;
    if (plan.ports[k].rank == 0 && type_of(args[k]) == &PyFloat_Type) {
      numbers[k] = PyFloat_AsDouble(args[k]);
      if (plan.bits == 32) *(float*)&numbers[k] = (float)numbers[k];
      x[k].ndim = 0;
      words[2 + 2 * k] = (int64_t)&numbers[k];
      supported = k > 0;  // the first input makes the results
      continue;
    }
    supported = look(plan.exchange, types, args[k], &x[k]) && fits(x[k], plan.ports[k], plan.bits);
    if (!supported) break;
    const int own = x[k].ndim - (int)plan.ports[k].rank;
    if (own > 0 && lead == 0) {
      batched = k;
      lead = own;
      supported = k == 0 || !plan.equal_batches;
    } else if (own > 0) {
      supported = own == lead;
      for (int j = 0; supported && j < lead; ++j) supported = x[k].shape[j] == x[batched].shape[j];
    } else {
      supported = lead == 0 || !plan.equal_batches;
    }
    words[2 + 2 * k] = (int64_t)start(x[k]);
    if (own > 0) words[3 + 2 * k] = plan.ports[k].size;
  }
  int64_t total = 1;
  for (int j = 0; supported && j < lead; ++j) total *= x[batched].shape[j];
  if (!supported || total < 1 || total >= plan.rows) {
    Py_IncRef(none);
    return none;
  }
  const int64_t tiles = total / plan.rows_per_tile ? total / plan.rows_per_tile : 1;
  words[0] = total;
  words[1] = plan.width * (tiles < plan.max_tiles ? tiles : plan.max_tiles);

  const bool is_array = type_of(args[0]) == types.array;
  Object* results = PyTuple_New(outputs);
  if (results == nullptr) return nullptr;
  for (int k = 0; k < outputs; ++k) {
    const Port& port = plan.ports[inputs + k];
    const bool has_like = !is_array && port.like >= 0 && port.rank > 0 && x[port.like].ndim == lead + (int)port.rank;
    Object* y = has_like ? PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 3), args[port.like], nullptr)
                         : new_result(self, args[0], is_array, x[batched], lead, port);
    ArrayView made;
    if (y == nullptr || PyTuple_SetItem(results, k, y) != 0 || !look(plan.exchange, types, y, &made)) {
      Py_DecRef(results);
      return nullptr;
    }
    words[2 + 2 * (inputs + k)] = (int64_t)start(made);
    words[3 + 2 * (inputs + k)] = port.size;
  }
  Object* state = plan.releases ? PyEval_SaveThread() : nullptr;
  const int error = plan.launch(&plan.kernel, words, 1);
  if (plan.releases) PyEval_RestoreThread(state);
  if (error != 0) {
    Py_DecRef(results);
    return PyErr_NoMemory();
  }
  return results;
}

// PyMethodDef of Python: name, code, calling convention (METH_FASTCALL), docstring.
struct Method {
  const char* name;
  Object* (*code)(Object*, Object* const*, ptrdiff_t);
  int flags;
  const char* text;
};
extern "C" __attribute__((visibility("default"))) Method torchsko_method = {
    "native_call", torchsko_native_call, 0x0080, "A kernel's results for plain contiguous tensors, or None."};
