/*
 * Decodes arbitrary bytes. First byte: kind of message (0 = the rest is a whole message, header and
 * all, as it came); second byte: flags. Otherwise the rest becomes a payload behind a header and a
 * MAC made here, so that the fuzzer gets past the MAC to zstd, protobuf and the checks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "proto/wire/envelope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static struct ef_wire_keys *keys;
static struct ef_wire_reader *reader;

static void
open_once(void)
{
    struct ef_err err = {0};

    if (reader != NULL)
        return;
    if (ef_wire_keys_open(NULL, &keys, &err) != EF_OK ||
        ef_wire_reader_open(keys, &reader, &err) != EF_OK) {
        fprintf(stderr, "fuzz_wire: %s\n", err.msg);
        exit(1);
    }
}

/* Gives a message with the payload behind a good header (free()). */
static uint8_t *
sign(uint8_t kind, uint8_t flags, const uint8_t *payload, size_t len)
{
    uint32_t id, raw_bytes = (uint32_t)len;
    uint8_t *message = calloc(1, EF_WIRE_HEADER_BYTES + len);

    if (message == NULL)
        exit(1);
    if ((flags & EF_WIRE_FLAG_ZSTD) != 0)
        raw_bytes = (uint32_t)ZSTD_getFrameContentSize(payload, len);
    memcpy(message, "EFW1", 4);
    message[4] = kind;
    message[5] = flags;
    message[6] = EF_WIRE_VERSION;
    for (int i = 0; i < 4; i++)
        message[12 + i] = (uint8_t)(raw_bytes >> (8 * i));
    if (len > 0)
        memcpy(message + EF_WIRE_HEADER_BYTES, payload, len);
    ef_wire_mac(ef_wire_keys_first(keys, &id), message, message + EF_WIRE_HEADER_BYTES, len,
                message + EF_WIRE_SIGNED_BYTES);
    return message;
}

/* What was accepted must be good enough to be sent again, and come back the same. */
static void
encode_again(struct ef_wire_header header, const ProtobufCMessage *decoded)
{
    struct ef_buf out;
    struct ef_err err = {0};
    ef_rc rc;

    ef_buf_init(&out, 8u << 20);
    rc = ef_wire_encode(keys, &header, decoded, &out, &err);
    if (rc != EF_OK && rc != EF_ELIMIT) {
        fprintf(stderr, "fuzz_wire: decoded, but: %s\n", err.msg);
        abort();
    }
    ef_buf_fini(&out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct ef_wire_header header;
    const ProtobufCMessage *decoded = NULL;
    struct ef_err err = {0};
    enum ef_wire_kind kind = EF_WIRE_BATCH;
    uint8_t *message = NULL;

    open_once();
    if (len < 2)
        return 0;
    if (data[0] != 0) {
        kind = (enum ef_wire_kind)(1 + (data[0] - 1) % 3);
        message = sign((uint8_t)kind, data[1] & EF_WIRE_FLAG_ZSTD, data + 2, len - 2);
        if (ef_wire_decode(reader, kind, message, len - 2 + EF_WIRE_HEADER_BYTES, &header, &decoded,
                           &err) == EF_OK)
            encode_again(header, decoded);
    } else if (ef_wire_decode(reader, kind, data + 2, len - 2, &header, &decoded, &err) == EF_OK) {
        encode_again(header, decoded);
    }
    free(message);
    return 0;
}
