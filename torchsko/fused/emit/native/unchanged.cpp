// Comparison of the memory of several tensors with a copy of it, as one function of Python.
//
// Only functions of Python's stable ABI are called, and declared here: its headers are not on every machine.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct Object;
extern "C" {
Object* PyTuple_GetItem(Object*, ptrdiff_t);
char* PyBytes_AsString(Object*);
void Py_IncRef(Object*);
}

// Self is (plan, copy, True, False). The plan is 64-bit words: a count, then address and size of each part.
extern "C" __attribute__((visibility("default"))) Object* torchsko_unchanged(Object* self, Object*) {
  const int64_t* plan = (const int64_t*)PyBytes_AsString(PyTuple_GetItem(self, 0));
  const char* copy = PyBytes_AsString(PyTuple_GetItem(self, 1));
  bool same = true;
  for (int64_t k = 0; same && k < plan[0]; ++k) {
    const int64_t address = plan[1 + 2 * k], size = plan[2 + 2 * k];
    same = memcmp((const void*)address, copy, (size_t)size) == 0;
    copy += size;
  }
  Object* result = PyTuple_GetItem(self, same ? 2 : 3);
  Py_IncRef(result);
  return result;
}

struct Method {
  const char* name;
  Object* (*code)(Object*, Object*);
  int flags;
  const char* text;
};
extern "C" __attribute__((visibility("default"))) Method torchsko_unchanged_method = {
    "unchanged", torchsko_unchanged, 0x0004, "Whether the memory holds what it held."};
