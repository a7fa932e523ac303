/* Control of the simulated CUDA driver: a C interface for C++ tests (linked or dlopen'ed), benchmarks, and ctypes.
 *
 * Streams and events are CUstream and CUevent, addresses are CUdeviceptr, results are CUresult as int (0: success).
 * Thread rule: any thread. Lifetime: the simulator is one per process, as the real driver is. */
#ifndef SLACKWATER_SIM_CUDA_H_
#define SLACKWATER_SIM_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#define SWSIM_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* --- the machine ------------------------------------------------------------------------------------------------- */

typedef struct swsim_device_config {
  uint64_t memory_bytes;    /* cuMemAlloc fails beyond it; default 16 GiB */
  uint64_t d2h_bytes_per_s; /* of each copy engine; 0, the default: as fast as memcpy */
  uint64_t h2d_bytes_per_s;
  uint64_t d2d_bytes_per_s;
  uint64_t pageable_bytes_per_s; /* to and from host memory that is not pinned */
  uint64_t copy_latency_ns;      /* before the first byte of every copy, or of every batch */
  int32_t numa_node;             /* what CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID answers; default 0 */
} swsim_device_config;

/* Number of devices; only before cuInit, else CUDA_ERROR_NOT_PERMITTED. Default: environment SWSIM_DEVICES, or 1. */
SWSIM_API int swsim_configure(int device_count);
SWSIM_API int swsim_get_config(int device, swsim_device_config* config);
/* At any time; a copy under way keeps the speed it began with. */
SWSIM_API int swsim_set_config(int device, const swsim_device_config* config);

/* Back to the state before cuInit, configuration and faults included. 0, or the number of contexts, streams, events,
 * allocations and registrations still alive: then nothing was done. */
SWSIM_API uint64_t swsim_reset(void);

/* --- device memory, past all streams ------------------------------------------------------------------------------ */

SWSIM_API int swsim_is_device_address(uint64_t address);
/* Where the simulator itself reaches this memory; NULL if it is none. For kernels: elsewhere use read and write. */
SWSIM_API void* swsim_device_to_host_alias(uint64_t address);
SWSIM_API int swsim_read(void* to, uint64_t from, size_t size_bytes);
SWSIM_API int swsim_write(uint64_t to, const void* from, size_t size_bytes);

/* --- compute: timed work on a stream ------------------------------------------------------------------------------ */

enum { SWSIM_AT_START = 0, SWSIM_AT_END = 1 };
/* Runs on a thread of the simulator; may use swsim_device_to_host_alias, must not call the driver. */
typedef void (*swsim_kernel)(void* user, int phase);

/* `kernel` is called when `duration_ns` are over; with `both_phases` when they begin, too. */
SWSIM_API int swsim_launch(void* stream, uint64_t duration_ns, swsim_kernel kernel, void* user, int both_phases);
SWSIM_API int swsim_launch_delay(void* stream, uint64_t duration_ns);
SWSIM_API int swsim_launch_fill(void* stream, uint64_t address, size_t size_bytes, uint8_t value, uint64_t duration_ns);
/* Adds `delta` to every 32-bit word: an update. */
SWSIM_API int swsim_launch_add_u32(void* stream, uint64_t address, size_t count, uint32_t delta, uint64_t duration_ns);

/* --- what happened ------------------------------------------------------------------------------------------------ */

typedef struct swsim_counts {
  uint64_t contexts;                    /* retained primary contexts */
  uint64_t streams, events;             /* alive */
  uint64_t allocations, device_bytes;   /* alive, on all devices */
  uint64_t registrations, pinned_bytes; /* alive; cuMemHostAlloc included */
  uint64_t pending;                     /* copies, kernels and markers not done */
  uint64_t host_waits;                  /* times a call waited for the device */
  uint64_t spinning_waits;              /* of those: on a real device the CPU would have spun */
  uint64_t old_abi_calls;               /* calls of a symbol that has a newer version */
  uint64_t invalid_handles;             /* calls with a destroyed or unknown stream or event */
  uint64_t unpinned_in_flight;          /* host memory unpinned while a copy was using it */
  uint64_t abandoned;                   /* objects that were alive when their context was destroyed */
} swsim_counts;
SWSIM_API void swsim_counters(swsim_counts* counts);
/* Calls of an exported symbol, failed ones included. */
SWSIM_API uint64_t swsim_calls(const char* symbol);

enum { SWSIM_D2H = 0, SWSIM_H2D = 1 };
typedef struct swsim_engine_stats {
  uint64_t busy_ns; /* sum of the copies' time windows */
  uint64_t bytes;
  uint64_t begun;  /* copies; a batch counts once */
  uint64_t copies; /* that are over */
} swsim_engine_stats;
SWSIM_API int swsim_engine(int device, int direction, swsim_engine_stats* stats);

/* Simulated time at which the event's last record was reached, on the clock of swsim_now_ns; -1 if it is not yet. */
SWSIM_API int64_t swsim_event_time_ns(void* event);
SWSIM_API int64_t swsim_now_ns(void); /* CLOCK_MONOTONIC */

/* --- faults ------------------------------------------------------------------------------------------------------- */

/* The nth call of `symbol` from now (1: the next) does nothing and returns `code`. `sticky`: so does every later call
 * that uses the current context. */
SWSIM_API void swsim_fail_call(const char* symbol, uint64_t nth, int code, int sticky);
/* The nth copy that a copy engine of the device begins from now on breaks off halfway. The error comes out of a later
 * call and sticks to the context. */
SWSIM_API int swsim_fail_copy(int device, uint64_t nth, int code);
/* Off, on: copies between host and device do not advance; halfway: they begin, and do not end. */
enum { SWSIM_STALL_OFF = 0, SWSIM_STALL_ON = 1, SWSIM_STALL_HALFWAY = 2 };
SWSIM_API int swsim_stall_copies(int device, int mode);
/* Waits until this many copies have begun since the start; CUDA_ERROR_NOT_READY if the device fails first. */
SWSIM_API int swsim_wait_begun(int device, int direction, uint64_t copies);
/* The device has gone: everything queued ends unfinished, every call on its context returns CUDA_ERROR_UNKNOWN. */
SWSIM_API int swsim_lose_device(int device);

#ifdef __cplusplus
}
#endif

#endif /* SLACKWATER_SIM_CUDA_H_ */
