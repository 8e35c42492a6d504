/* Functions for the tests of roce-service. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "roce_plugin.h"

/* The layouts that the service reads. */
_Static_assert(sizeof(roce_request) == 24 && sizeof(roce_response) == 24, "headers");
_Static_assert(sizeof(roce_type) == 12 && sizeof(roce_schema) == 148, "schema");
_Static_assert(offsetof(roce_schema, results) == 100, "schema");
_Static_assert(sizeof(roce_function_entry) == 176 && offsetof(roce_function_entry, function_id) == 8, "entry");
_Static_assert(offsetof(roce_function_entry, dispatch_mode) == 12 && offsetof(roce_function_entry, schema) == 16, "entry");
_Static_assert(offsetof(roce_function_entry, routing_key) == 168 && sizeof(roce_function_table_t) == 16, "entry, table");

static void respond(const roce_request *request, void *tx_slot, int32_t status, uint32_t result_len)
{
    roce_response response = {ROCE_RESPONSE_MAGIC, status, result_len, request->request_id, request->ptp_timestamp};
    memcpy(tx_slot, &response, sizeof response);
}

/* Its arguments, the last byte first. */
static void reverse(const void *rx_slot, void *tx_slot, size_t slot_size)
{
    const roce_request *request = rx_slot;
    const uint8_t *args = (const uint8_t *)(request + 1);
    uint8_t *results = (uint8_t *)tx_slot + sizeof(roce_response);
    if (request->arg_len > slot_size - sizeof *request) {
        respond(request, tx_slot, 1, 0);
        return;
    }
    for (uint32_t i = 0; i < request->arg_len; i++)
        results[i] = args[request->arg_len - 1 - i];
    respond(request, tx_slot, 0, request->arg_len);
}

/* Returns once the file that its arguments name is there. */
static void wait_for_file(const void *rx_slot, void *tx_slot, size_t slot_size)
{
    const roce_request *request = rx_slot;
    const struct timespec pause = {0, 1000000};
    char path[1024] = {0};
    (void)slot_size;
    if (request->arg_len < sizeof path)
        memcpy(path, request + 1, request->arg_len);
    while (access(path, F_OK) != 0)
        nanosleep(&pause, NULL);
    respond(request, tx_slot, 0, 0);
}

/* Leaves no response. */
static void silent(const void *rx_slot, void *tx_slot, size_t slot_size)
{
    (void)rx_slot, (void)tx_slot, (void)slot_size;
}

/* Claims more results than a slot holds. */
static void too_long(const void *rx_slot, void *tx_slot, size_t slot_size)
{
    respond(rx_slot, tx_slot, 0, (uint32_t)slot_size);
}

static void refuse(const void *rx_slot, void *tx_slot, size_t slot_size)
{
    (void)slot_size;
    respond(rx_slot, tx_slot, 42, 0);
}

static const roce_function_entry entries[] = {
    {.handler = reverse, .function_id = 0x8fc966b3u, .dispatch_mode = ROCE_HOST_CALL},      /* c_reverse */
    {.handler = wait_for_file, .function_id = 0x0ac6c7f5u, .dispatch_mode = ROCE_HOST_CALL}, /* c_wait_for_file */
    {.handler = silent, .function_id = 0x21576ebeu, .dispatch_mode = ROCE_HOST_CALL},       /* c_silent */
    {.handler = too_long, .function_id = 0x48c70cc6u, .dispatch_mode = ROCE_HOST_CALL},     /* c_too_long */
    {.handler = refuse, .function_id = 0x36838f8bu, .dispatch_mode = ROCE_HOST_CALL},       /* c_refuse */
};

const roce_function_table_t roce_function_table = {entries, sizeof entries / sizeof *entries};
