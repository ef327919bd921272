/*
 * The envelope: one nng message = 64-byte header + one protobuf message, zstd-compressed when that
 * is smaller.
 *
 * Header, little-endian: magic "EFW1" (4) | kind (1) | flags (1: bit 0 = zstd) | version (1) = 1 |
 * reserved (1) = 0 | key id (4) | raw bytes (4) | publisher (16) | epoch (8) | sequence (8) | MAC
 * (16). MAC = BLAKE2b-128, keyed with 32 bytes, over the first 48 header bytes and the payload as
 * sent. Key id 0 is the well-known all-zero key: it finds damage, but does not authenticate. A
 * reply carries the publisher, epoch and sequence of its request (for SYNC the sequence is a
 * request counter), so that an old reply is recognised.
 *
 * Any thread; an ef_wire_reader is used by one thread at a time.
 */
#ifndef PROTO_WIRE_WIRE_H
#define PROTO_WIRE_WIRE_H

#include "proto/base/buf.h"
#include "proto/base/err.h"

#include "proto/everflame/v1/wire.pb-c.h"

#define EF_WIRE_HEADER_BYTES 64
#define EF_WIRE_VERSION 1
#define EF_WIRE_PUBLISHER_BYTES 16
#define EF_WIRE_KEY_BYTES 32
#define EF_WIRE_KEYS_MAX 64 /* keys in one ring; rotation needs 2 */
#define EF_WIRE_NAME_BYTES_MAX                                                                     \
    128 /* account, worker, version, instance, host, region, runtime, label name or value */
#define EF_WIRE_TEXT_BYTES_MAX 4096 /* function name or file */
#define EF_WIRE_LABELS_MAX 16
#define EF_WIRE_BATCH_BYTES_MAX (1u << 20) /* a message as sent; nng's RECVMAXSZ is set to it */
#define EF_WIRE_RAW_BYTES_MAX (4u << 20)   /* after decompression */
#define EF_WIRE_ARENA_FACTOR                                                                       \
    16 /* decode may allocate this many times the raw bytes (measured 7.1 ×) */
#define EF_WIRE_FRAGMENTS_MAX 4096    /* fragments of one batch */
#define EF_WIRE_PAIRS_MAX 65536       /* stacks of one fragment */
#define EF_WIRE_DEFINITIONS_MAX 65536 /* functions, and stacks, of one batch */

enum ef_wire_kind { EF_WIRE_BATCH = 1, EF_WIRE_SYNC_REQUEST = 2, EF_WIRE_SYNC_REPLY = 3 };

struct ef_wire_header {
    uint8_t kind;
    uint8_t flags;
    uint32_t key_id;
    uint32_t raw_bytes;
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];
    uint64_t epoch;
    uint64_t sequence;
};

/* A ring of keys. The first key added is used for sending. */
struct ef_wire_keys;
/* Reads a key file: lines "<id> <64 hex digits>", '#' comments; ids 1 to 2^32-1. NULL path = only
 * the zero key, id 0. */
EF_MUST_USE ef_rc ef_wire_keys_open(const char *path, struct ef_wire_keys **ret_keys,
                                    struct ef_err *err);
void ef_wire_keys_free(struct ef_wire_keys *keys);
bool ef_wire_keys_authenticate(
    const struct ef_wire_keys *keys); /* false when only the zero key is there */

/*
 * Packs a message (EverflameV1Batch, SyncRequest or SyncReply, according to header->kind) into
 * `out` (cleared first). header->flags, key_id and raw_bytes are set here. EF_ELIMIT when it is
 * larger than the limits above.
 */
EF_MUST_USE ef_rc ef_wire_encode(const struct ef_wire_keys *keys, struct ef_wire_header *header,
                                 const ProtobufCMessage *message, struct ef_buf *out,
                                 struct ef_err *err);

/*
 * Decodes into memory of its own that is reused by the next decode. Sizes are checked before
 * anything is decompressed, the MAC before anything is parsed, columns, counts, names and UTF-8
 * after. EF_ECORRUPT (not ours or damaged), EF_EAUTH (MAC or key), EF_ELIMIT (too large or too
 * many), EF_EUNSUP (a later version), EF_ENOMEM.
 */
struct ef_wire_reader;
EF_MUST_USE ef_rc ef_wire_reader_open(const struct ef_wire_keys *keys,
                                      struct ef_wire_reader **ret_reader, struct ef_err *err);
void ef_wire_reader_free(struct ef_wire_reader *reader);
/* *ret_message borrows the reader's memory until the next decode; its type follows from
 * ret_header->kind, which must be `kind`. */
EF_MUST_USE ef_rc ef_wire_decode(struct ef_wire_reader *reader, enum ef_wire_kind kind,
                                 const void *data, size_t len, struct ef_wire_header *ret_header,
                                 const ProtobufCMessage **ret_message, struct ef_err *err);
/* Reads the header alone, without any check of the MAC. For spool files and tests. */
EF_MUST_USE ef_rc ef_wire_peek(const void *data, size_t len, struct ef_wire_header *ret_header,
                               struct ef_err *err);

#endif
