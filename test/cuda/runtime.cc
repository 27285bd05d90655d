// Stands in for CUDA's runtime on a machine without a GPU, for the CUDA provider of onnxruntime itself. Memory of the "device" is the
// host's; copies are real, and kernels do nothing. So a model that only moves tensors answers right. COUNTS holds what tests ask for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

typedef int Error;
typedef void *Handle;

static const Error SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101;

// Bytes of the device, bytes pinned, copies to the device from pinned and from other memory, and the most copies at the same time.
enum Count { DEVICE, PINNED, FROM_PINNED, FROM_OTHER, AT_ONCE, COUNTS };

static std::mutex lock;
static std::map<const char *, size_t> device, pinned;
static int64_t counts[COUNTS], copies = 0;
static thread_local int current = 0;

static int numberOf(const char *variable, int otherwise) {
  const char *value = getenv(variable);
  return value ? atoi(value) : otherwise;
}

static const int DEVICES = numberOf("STAND_IN_DEVICES", 2);
static const int DELAY = numberOf("STAND_IN_DELAY", 0);

static bool isIn(const std::map<const char *, size_t> &blocks, const void *address) {
  auto next = blocks.upper_bound((const char *)address);
  return next != blocks.begin() && (const char *)address < std::prev(next)->first + std::prev(next)->second;
}

static Error take(std::map<const char *, size_t> &blocks, Count count, void **address, size_t bytes) {
  if (posix_memalign(address, 512, bytes ? bytes : 1)) return OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(lock);
  blocks[(const char *)*address] = bytes;
  counts[count] += bytes;
  return SUCCESS;
}

static Error give(std::map<const char *, size_t> &blocks, Count count, void *address) {
  if (!address) return SUCCESS;
  std::lock_guard<std::mutex> guard(lock);
  auto block = blocks.find((const char *)address);
  // Freed twice, or by the wrong function.
  if (block == blocks.end()) abort();
  counts[count] -= block->second;
  blocks.erase(block);
  free(address);
  return SUCCESS;
}

static Error copy(void *to, const void *from, size_t bytes) {
  {
    std::lock_guard<std::mutex> guard(lock);
    // Weights and rows, not shapes.
    if (bytes >= 512 && isIn(device, to) && !isIn(device, from)) counts[isIn(pinned, from) ? FROM_PINNED : FROM_OTHER]++;
    counts[AT_ONCE] = std::max(counts[AT_ONCE], ++copies);
  }
  memcpy(to, from, bytes);
  if (DELAY) std::this_thread::sleep_for(std::chrono::milliseconds(DELAY));
  std::lock_guard<std::mutex> guard(lock);
  copies--;
  return SUCCESS;
}

static Error created(Handle *handle) {
  *handle = malloc(8);
  return SUCCESS;
}

static Error ended(Handle handle) {
  free(handle);
  return SUCCESS;
}

extern "C" {
void standInCounts(int64_t *out) {
  std::lock_guard<std::mutex> guard(lock);
  std::copy(counts, counts + COUNTS, out);
}

Error cudaMalloc(void **address, size_t bytes) { return take(device, DEVICE, address, bytes); }
Error cudaMallocFromPoolAsync(void **address, size_t bytes, Handle, Handle) { return take(device, DEVICE, address, bytes); }
Error cudaFree(void *address) { return give(device, DEVICE, address); }
Error cudaFreeAsync(void *address, Handle) { return give(device, DEVICE, address); }
Error cudaMallocHost(void **address, size_t bytes) { return take(pinned, PINNED, address, bytes); }
Error cudaHostAlloc(void **address, size_t bytes, unsigned) { return take(pinned, PINNED, address, bytes); }
Error cudaFreeHost(void *address) { return give(pinned, PINNED, address); }
Error cudaMemcpy(void *to, const void *from, size_t bytes, int) { return copy(to, from, bytes); }
Error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, Handle) { return copy(to, from, bytes); }
Error cudaMemset(void *to, int byte, size_t bytes) { memset(to, byte, bytes); return SUCCESS; }
Error cudaMemsetAsync(void *to, int byte, size_t bytes, Handle) { memset(to, byte, bytes); return SUCCESS; }
Error cudaMemGetInfo(size_t *unused, size_t *all) { *unused = *all = (size_t)16 << 30; return SUCCESS; }

Error cudaGetDeviceCount(int *count) { *count = DEVICES; return DEVICES ? SUCCESS : NO_DEVICE; }
Error cudaGetDevice(int *number) { *number = current; return DEVICES ? SUCCESS : NO_DEVICE; }
Error cudaSetDevice(int number) {
  if (!DEVICES) return NO_DEVICE;
  if (number < 0 || number >= DEVICES) return INVALID_DEVICE;
  current = number;
  return SUCCESS;
}
// Of the structure's fields the provider reads the compute capability, and limits of sizes, all of which lie before it.
Error cudaGetDeviceProperties(char *properties, int) {
  const size_t LIMITS = 288, MAJOR = 360, SIZE = 1008;
  const int LIMIT = 1024, COMPUTE_CAPABILITY = 9;
  memset(properties, 0, SIZE);
  for (size_t at = LIMITS; at < MAJOR; at += sizeof LIMIT) memcpy(properties + at, &LIMIT, sizeof LIMIT);
  memcpy(properties + MAJOR, &COMPUTE_CAPABILITY, sizeof COMPUTE_CAPABILITY);
  return DEVICES ? SUCCESS : NO_DEVICE;
}
Error cudaDeviceGetAttribute(int *value, int, int) { *value = 1024; return SUCCESS; }
Error cudaDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
Error cudaRuntimeGetVersion(int *version) { *version = 13000; return SUCCESS; }
const char *cudaGetErrorName(Error) { return "error of the stand-in"; }
const char *cudaGetErrorString(Error error) {
  return error == NO_DEVICE ? "no CUDA-capable device is detected" : error == INVALID_DEVICE ? "invalid device ordinal" : "out of memory";
}

Error cudaStreamCreate(Handle *stream) { return created(stream); }
Error cudaStreamCreateWithFlags(Handle *stream, unsigned) { return created(stream); }
Error cudaStreamDestroy(Handle stream) { return ended(stream); }
Error cudaStreamIsCapturing(Handle, int *status) { *status = 0; return SUCCESS; }
Error cudaEventCreate(Handle *event) { return created(event); }
Error cudaEventCreateWithFlags(Handle *event, unsigned) { return created(event); }
Error cudaEventDestroy(Handle event) { return ended(event); }
Error cudaLaunchHostFunc(Handle, void (*call)(void *), void *data) { call(data); return SUCCESS; }
void **__cudaRegisterFatBinary(void *) { static void *none; return &none; }
}
