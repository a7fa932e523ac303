/* Controls the simulated CUDA driver: a C interface for C++ tests (linked or loaded by dlopen), benchmarks, and ctypes.
 *
 * Streams and events are CUstream and CUevent, addresses are CUdeviceptr, results are CUresult as int (0: success).
 * Thread rule: any thread. Lifetime: there is one simulator per process, as there is one driver. */
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
  uint64_t memory_bytes;    /* cuMemAlloc fails beyond this; default 16 GiB */
  uint64_t d2h_bytes_per_s; /* speed of each copy engine; 0, the default: as fast as memcpy */
  uint64_t h2d_bytes_per_s;
  uint64_t d2d_bytes_per_s;
  uint64_t pageable_bytes_per_s; /* to and from host memory that is not pinned */
  uint64_t copy_latency_ns;      /* before the first byte of every copy, or of every batch */
  int32_t numa_node;             /* value of CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID; default 0 */
  int32_t copy_priorities;       /* 1: copy engines obey priorities and streams take turns. Default 0, as reported */
  uint64_t queue_limit;          /* a call blocks while its stream has this many pending ops; 0: never; default 1024 */
  uint64_t host_latency_ns;      /* until the host sees that an event or a stream is done; streams do not wait for it */
} swsim_device_config;

/* Sets the number of devices. Only before cuInit, else CUDA_ERROR_NOT_PERMITTED. Default: $SWSIM_DEVICES, or 1. */
SWSIM_API int swsim_configure(int device_count);
SWSIM_API int swsim_get_config(int device, swsim_device_config* config);
/* At any time. A copy in flight keeps the speed that it began with. */
SWSIM_API int swsim_set_config(int device, const swsim_device_config* config);

/* Returns to the state before cuInit, without configuration and faults. Returns 0. If contexts, streams, events,
 * allocations or registrations are still alive, it returns their number and does nothing. */
SWSIM_API uint64_t swsim_reset(void);

/* --- device memory, bypassing streams ----------------------------------------------------------------------------- */

SWSIM_API int swsim_is_device_address(uint64_t address);
/* Where the simulator reaches this memory; NULL if it is not device memory. Only for kernels: others read and write. */
SWSIM_API void* swsim_device_to_host_alias(uint64_t address);
SWSIM_API int swsim_read(void* to, uint64_t from, size_t size_bytes);
SWSIM_API int swsim_write(uint64_t to, const void* from, size_t size_bytes);

/* Plays a caching allocator that owns the device: takes all free memory but `leave_bytes`, so that cuMemAlloc fails
 * beyond that. Memory freed later is free again. A second call starts afresh. Not counted as an allocation. */
SWSIM_API int swsim_take_memory(int device, uint64_t leave_bytes);
SWSIM_API int swsim_release_memory(int device);

/* Takes memory away although copies of it may be pending. None of these waits for the device, as cuMemFree does.
 *
 * swsim_unmap plays cuMemUnmap of an allocator with a "sleep mode": `address`, the start of an allocation, stays
 * reserved, but its memory goes. Work that uses it later, or is in the middle of it, fails the context with
 * CUDA_ERROR_ILLEGAL_ADDRESS; new copies are refused. swsim_map gives the address new memory, which holds zeros. It
 * fails with CUDA_ERROR_OUT_OF_MEMORY if the device has none left. */
SWSIM_API int swsim_unmap(uint64_t address);
SWSIM_API int swsim_map(uint64_t address);
/* Plays a caching allocator: frees an allocation at once, and the next cuMemAlloc of the same size gets the same
 * address and memory. Copies that are still pending deliver what the new owner has written. */
SWSIM_API int swsim_free_for_reuse(uint64_t address);

/* --- compute: timed work on a stream ------------------------------------------------------------------------------ */

enum { SWSIM_AT_START = 0, SWSIM_AT_END = 1 };
/* Runs on a thread of the simulator. May use swsim_device_to_host_alias, but must not call the driver. */
typedef void (*swsim_kernel)(void* user, int phase);

/* Calls `kernel` after `duration_ns`. With `both_phases`, also at the start. */
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
  uint64_t pending;                     /* unfinished copies, kernels and markers */
  uint64_t host_waits;                  /* calls that waited for the device */
  uint64_t spinning_waits;              /* of those, calls that would spin with a real device */
  uint64_t old_abi_calls;               /* calls of symbols that have a newer version */
  uint64_t invalid_handles;             /* calls with a destroyed or unknown stream or event */
  uint64_t unpinned_in_flight;          /* host memory unpinned while a copy used it */
  uint64_t abandoned;                   /* objects that were alive when their context was destroyed */
  uint64_t blocked_calls;               /* calls that waited because their stream's queue was full */
} swsim_counts;
SWSIM_API void swsim_counters(swsim_counts* counts);
/* Number of calls of an exported symbol, including failed ones. */
SWSIM_API uint64_t swsim_calls(const char* symbol);

enum { SWSIM_D2H = 0, SWSIM_H2D = 1 };
typedef struct swsim_engine_stats {
  uint64_t busy_ns; /* simulated time of all copies */
  uint64_t bytes;
  uint64_t begun;  /* copies that have begun; a batch counts once */
  uint64_t copies; /* finished copies */
} swsim_engine_stats;
SWSIM_API int swsim_engine(int device, int direction, swsim_engine_stats* stats);

/* Simulated time at which the last record of the event was reached, on the clock of swsim_now_ns; -1 if not reached. */
SWSIM_API int64_t swsim_event_time_ns(void* event);
SWSIM_API int64_t swsim_now_ns(void); /* CLOCK_MONOTONIC */

/* --- what calls cost on the host ---------------------------------------------------------------------------------- */

enum {
  SWSIM_COST_REGISTER = 0, /* cuMemHostRegister */
  SWSIM_COST_HOST_ALLOC,   /* cuMemHostAlloc */
  SWSIM_COST_DEVICE_ALLOC, /* cuMemAlloc */
  SWSIM_COST_STREAM,       /* cuStreamCreate */
  SWSIM_COST_EVENT,        /* cuEventCreate */
  SWSIM_COSTS
};
/* How long a call takes; default 0. A call that is under way ends when the new cost says so. */
SWSIM_API int swsim_set_cost(int cost, uint64_t call_ns, uint64_t ns_per_mib);
/* Whether such a call holds a lock that every other call waits for, except for versions and names of errors. Default 1.
 * Devices go on meanwhile. */
SWSIM_API void swsim_set_driver_lock(int on);
typedef struct swsim_lock_stats {
  uint64_t held_ns, longest_hold_ns; /* simulated */
  uint64_t waiting;                  /* calls that wait for the lock now */
  uint64_t waits;                    /* calls that have waited */
  uint64_t longest_wait_ns;          /* of one call, until the lock's holder was due to end */
} swsim_lock_stats;
SWSIM_API void swsim_driver_lock(swsim_lock_stats* stats);

/* --- faults ------------------------------------------------------------------------------------------------------- */

/* The nth call of `symbol` from now (1: the next) does nothing and returns `code`. With `sticky`, so does every later
 * call that uses the current context. */
SWSIM_API void swsim_fail_call(const char* symbol, uint64_t nth, int code, int sticky);
/* The nth copy that a copy engine of the device begins from now on stops halfway. A later call returns the error, which
 * sticks to the context. */
SWSIM_API int swsim_fail_copy(int device, uint64_t nth, int code);
/* On: copies between host and device do not begin. Halfway: they begin, but do not end. */
enum { SWSIM_STALL_OFF = 0, SWSIM_STALL_ON = 1, SWSIM_STALL_HALFWAY = 2 };
SWSIM_API int swsim_stall_copies(int device, int mode);
/* Waits until this many copies have begun since the start. CUDA_ERROR_NOT_READY if the device fails first. */
SWSIM_API int swsim_wait_begun(int device, int direction, uint64_t copies);
/* Loses the device: everything queued ends unfinished, and every call on its context returns CUDA_ERROR_UNKNOWN. */
SWSIM_API int swsim_lose_device(int device);

/* On: a call with a destroyed or unknown stream or event ends the process with SIGSEGV, as the real driver may. NULL is
 * refused as before. Default off: the call returns CUDA_ERROR_INVALID_HANDLE. */
SWSIM_API void swsim_crash_on_bad_handles(int on);

/* --- a broken driver or device, for health checks ---------------------------------------------------------------- */

enum {
  SWSIM_IGNORE_WAITS = 1, /* cuStreamWaitEvent returns success, but orders nothing; captures are not affected */
  SWSIM_WRONG_BATCHES = 2 /* each copy of a batch delivers one wrong byte; single copies are right */
};
/* Sets what is broken; combine with |. 0: nothing. */
SWSIM_API void swsim_break(unsigned faults);
/* Every nth copy to the host from now on delivers one wrong byte, without an error. A batch is one copy. 0: none. */
SWSIM_API int swsim_flip_copies(int device, uint64_t every);

/* Changes settings by a text, as the environment variable SWSIM_CONFIG does at the first use of the driver: see
 * README.md for the keys. All or nothing. A wrong text prints one line and returns CUDA_ERROR_INVALID_VALUE. */
SWSIM_API int swsim_set(const char* settings);

#ifdef __cplusplus
}
#endif

#endif /* SLACKWATER_SIM_CUDA_H_ */
