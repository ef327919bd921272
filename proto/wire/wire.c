/*
 * Decides the order of encode (check, pack, seal) and decode (unseal, unpack, check). Must not know
 * where messages come from. Encode: any thread; a reader: one thread at a time.
 */
#include "proto/wire/wire.h"

#include "proto/wire/arena.h"
#include "proto/wire/check.h"
#include "proto/wire/envelope.h"
#include "proto/wire/reader.h"

#include <stdlib.h>

/* A sync request of a few bytes decodes into structs of a few hundred. */
#define ARENA_SLACK_BYTES 65536u

struct ef_wire_reader {
    const struct ef_wire_keys *keys; /* borrowed */
    struct ef_wire_unsealer *unsealer;
    struct ef_wire_arena arena;
};

static const ProtobufCMessageDescriptor *
descriptor_of(int kind)
{
    switch (kind) {
    case EF_WIRE_BATCH:
        return &everflame__v1__batch__descriptor;
    case EF_WIRE_SYNC_REQUEST:
        return &everflame__v1__sync_request__descriptor;
    case EF_WIRE_SYNC_REPLY:
        return &everflame__v1__sync_reply__descriptor;
    default:
        return NULL;
    }
}

static const char *
kind_name(int kind)
{
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(kind);

    return descriptor != NULL ? descriptor->short_name : "unknown kind";
}

ef_rc
ef_wire_encode(const struct ef_wire_keys *keys, struct ef_wire_header *header,
               const ProtobufCMessage *message, struct ef_buf *out, struct ef_err *err)
{
    size_t bytes;
    uint8_t *raw;
    ef_rc rc;

    if (message->descriptor != descriptor_of(header->kind))
        return ef_err_set(err, EF_EINVAL, "message is not of the kind its header says: %s",
                          kind_name(header->kind));
    rc = ef_wire_check((enum ef_wire_kind)header->kind, message, false, err);
    if (rc == EF_ECORRUPT) { /* ours, so it is not damage but a wrong value */
        rc = EF_EINVAL;
        if (err != NULL)
            err->rc = rc;
    }
    if (rc != EF_OK)
        return rc;
    bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > EF_WIRE_RAW_BYTES_MAX)
        return ef_err_set(err, EF_ELIMIT, "message of %zu bytes is larger than %u", bytes,
                          EF_WIRE_RAW_BYTES_MAX);
    raw = malloc(bytes > 0 ? bytes : 1);
    if (raw == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a message of %zu bytes", bytes);
    protobuf_c_message_pack(message, raw);
    rc = ef_wire_seal(keys, header, raw, bytes, out, err);
    free(raw);
    return rc;
}

ef_rc
ef_wire_reader_open(const struct ef_wire_keys *keys, struct ef_wire_reader **ret_reader,
                    struct ef_err *err)
{
    struct ef_wire_reader *reader = calloc(1, sizeof(*reader));

    if (reader == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a reader");
    reader->keys = keys;
    ef_wire_arena_init(&reader->arena);
    reader->unsealer = ef_wire_unsealer_open();
    if (reader->unsealer == NULL) {
        ef_wire_reader_free(reader);
        return ef_err_set(err, EF_ENOMEM, "no memory for a reader");
    }
    *ret_reader = reader;
    return EF_OK;
}

void
ef_wire_reader_free(struct ef_wire_reader *reader)
{
    if (reader == NULL)
        return;
    ef_wire_unsealer_free(reader->unsealer);
    ef_wire_arena_fini(&reader->arena);
    free(reader);
}

struct ef_wire_arena *
ef_wire_reader_arena(struct ef_wire_reader *reader)
{
    return &reader->arena;
}

/* protobuf-c says NULL for all reasons; the arena knows whether memory was one. */
static ef_rc
unpack_failed(const struct ef_wire_arena *arena, size_t raw_bytes, struct ef_err *err)
{
    switch (arena->failed) {
    case EF_WIRE_ARENA_NO_MEMORY:
        return ef_err_set(err, EF_ENOMEM, "no memory to decode a message of %zu bytes", raw_bytes);
    case EF_WIRE_ARENA_CAPPED:
        return ef_err_set(err, EF_ELIMIT, "message of %zu bytes needs more than %zu to decode",
                          raw_bytes, arena->bytes_max);
    case EF_WIRE_ARENA_GOOD:
        break;
    }
    return ef_err_set(err, EF_ECORRUPT, "message is not what its schema says");
}

ef_rc
ef_wire_decode(struct ef_wire_reader *reader, enum ef_wire_kind kind, const void *data, size_t len,
               struct ef_wire_header *ret_header, const ProtobufCMessage **ret_message,
               struct ef_err *err)
{
    struct ef_wire_header header;
    ProtobufCMessage *message;
    const uint8_t *raw;
    size_t raw_bytes;
    ef_rc rc;

    rc = ef_wire_unseal(reader->unsealer, reader->keys, data, len, &header, &raw, &raw_bytes, err);
    if (rc != EF_OK)
        return rc;
    if (header.kind != kind || descriptor_of(kind) == NULL)
        return ef_err_set(err, EF_ECORRUPT, "message is a %s, not a %s", kind_name(header.kind),
                          kind_name(kind));
    ef_wire_arena_reset(&reader->arena, raw_bytes * EF_WIRE_ARENA_FACTOR + ARENA_SLACK_BYTES);
    message =
        protobuf_c_message_unpack(descriptor_of(kind), &reader->arena.allocator, raw_bytes, raw);
    if (message == NULL)
        return unpack_failed(&reader->arena, raw_bytes, err);
    rc = ef_wire_check(kind, message, true, err);
    if (rc != EF_OK)
        return rc;
    *ret_header = header;
    *ret_message = message;
    return EF_OK;
}
