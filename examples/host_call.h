/*
 * RPC frames, and functions that serve them as plain C functions: a handler reads a whole request, header included,
 * from its first argument and writes the whole response into its second. All integers are little-endian.
 */
#ifndef HOST_CALL_H
#define HOST_CALL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RPC_REQUEST 0x43555152u
#define RPC_RESPONSE 0x43555153u
#define RPC_UNKNOWN_FUNCTION (-1)

struct rpc_request {
  uint32_t magic;
  uint32_t function_id;
  uint32_t arg_len;
  uint32_t request_id;
  uint64_t ptp_timestamp;
};

struct rpc_response {
  uint32_t magic;
  int32_t status;
  uint32_t result_len;
  uint32_t request_id;
  uint64_t ptp_timestamp;
};

typedef void (*host_call)(const void *rx_slot, void *tx_slot, size_t slot_size);

struct function {
  uint32_t id;
  host_call handler;
};

/* A function's id: 32-bit FNV-1a of its name. */
static inline uint32_t function_id(const char *name) {
  uint32_t hash = 2166136261u;
  for (; *name; name++)
    hash = (hash ^ (unsigned char)*name) * 16777619u;
  return hash;
}

/* Starts a response to the request, which the caller completes with results. */
static inline void respond(void *tx_slot, const struct rpc_request *request, int32_t status, uint32_t result_len) {
  struct rpc_response response;
  response.magic = RPC_RESPONSE;
  response.status = status;
  response.result_len = result_len;
  response.request_id = request->request_id;
  response.ptp_timestamp = request->ptp_timestamp;
  memcpy(tx_slot, &response, sizeof response);
}

/* Calls the function that the request names. 0: the message is no request, and there is nothing to send. */
static inline int dispatch(const struct function *functions, size_t count, const void *rx_slot, void *tx_slot,
                           size_t slot_size) {
  struct rpc_request request;
  memcpy(&request, rx_slot, sizeof request);
  if (request.magic != RPC_REQUEST)
    return 0;
  memset(tx_slot, 0, slot_size);
  for (size_t i = 0; i < count; i++) {
    if (functions[i].id == request.function_id) {
      functions[i].handler(rx_slot, tx_slot, slot_size);
      return 1;
    }
  }
  respond(tx_slot, &request, RPC_UNKNOWN_FUNCTION, 0);
  return 1;
}

/* rpc_increment: every byte of the arguments, one higher. */
static inline void increment(const void *rx_slot, void *tx_slot, size_t slot_size) {
  struct rpc_request request;
  memcpy(&request, rx_slot, sizeof request);
  const unsigned char *arguments = (const unsigned char *)rx_slot + sizeof request;
  unsigned char *results = (unsigned char *)tx_slot + sizeof(struct rpc_response);
  uint32_t length = request.arg_len;
  if (length > slot_size - sizeof request)
    length = (uint32_t)(slot_size - sizeof request);
  for (uint32_t i = 0; i < length; i++)
    results[i] = (unsigned char)(arguments[i] + 1);
  respond(tx_slot, &request, 0, length);
}

#endif
