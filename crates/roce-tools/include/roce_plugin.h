/* Functions in C for roce-service: build a shared library that defines roce_function_table, and name it with --plugin.
 *
 * Everything is little-endian, and the layouts are those of 64-bit machines. A function may run in several threads at
 * once, one per caller. See docs/device-calls.md. */
#ifndef ROCE_PLUGIN_H
#define ROCE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROCE_REQUEST_MAGIC 0x43555152u
#define ROCE_RESPONSE_MAGIC 0x43555153u

/* 24 bytes at the start of a request; arg_len bytes of arguments follow. */
typedef struct roce_request {
    uint32_t magic;
    uint32_t function_id;
    uint32_t arg_len;
    uint32_t request_id;
    uint64_t ptp_timestamp;
} roce_request;

/* 24 bytes at the start of a response; result_len bytes of results follow. The function writes it whole: the magic, a
 * status (0 success, above 0 an error of its own), and request_id and ptp_timestamp as in the request. */
typedef struct roce_response {
    uint32_t magic;
    int32_t status;
    uint32_t result_len;
    uint32_t request_id;
    uint64_t ptp_timestamp;
} roce_response;

/* Reads the request in rx_slot and writes the response into tx_slot, which is zeroed. Both have slot_size bytes. It
 * keeps neither pointer, and lets no exception out. */
typedef void (*roce_handler)(const void *rx_slot, void *tx_slot, size_t slot_size);

typedef struct roce_type {
    uint8_t type_id;
    uint8_t reserved[3];
    uint32_t size_bytes;
    uint32_t num_elements;
} roce_type;

/* May be all zero: it is not enforced. */
typedef struct roce_schema {
    uint8_t num_args;
    uint8_t num_results;
    uint16_t reserved;
    roce_type args[8];
    roce_type results[4];
} roce_schema;

#define ROCE_HOST_CALL 2

typedef struct roce_function_entry {
    roce_handler handler;
    uint32_t function_id;  /* 32-bit FNV-1a of the function's name: roce_function_id */
    uint8_t dispatch_mode; /* ROCE_HOST_CALL */
    uint8_t reserved[3];
    roce_schema schema;
    uint64_t routing_key; /* not used */
} roce_function_entry;

typedef struct roce_function_table_t {
    const roce_function_entry *entries;
    uint32_t count;
} roce_function_table_t;

/* What the library defines. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const roce_function_table_t roce_function_table;

/* The id of a name. A table is constant: work the ids out beforehand, and check them with this. */
static inline uint32_t roce_function_id(const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return hash;
}

#ifdef __cplusplus
}
#endif

#endif
