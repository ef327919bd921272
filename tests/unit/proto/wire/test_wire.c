/*
 * The envelope and its checks: what is encoded decodes to the same, and nothing else decodes.
 */
#include "tests/support/ef_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "proto/wire/arena.h"
#include "proto/wire/envelope.h"
#include "proto/wire/reader.h"
#include "proto/wire/wire.h"
#include "tests/support/wire_sample.h"

struct fixture {
    char *folder;
    struct ef_wire_keys *keys;
    struct ef_wire_reader *reader;
    struct ef_wire_sample sample;
    struct ef_wire_header header;
    struct ef_buf out;
    struct ef_err err;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->folder = ef_test_tmpdir();
    f->keys = ef_wire_sample_keys(f->folder, 7, 0x5a);
    assert_int_equal(ef_wire_reader_open(f->keys, &f->reader, &f->err), EF_OK);
    ef_wire_sample_init(&f->sample);
    f->header = (struct ef_wire_header){.kind = EF_WIRE_BATCH, .epoch = 11, .sequence = 12};
    memcpy(f->header.publisher, "0123456789abcdef", 16);
    ef_buf_init(&f->out, EF_WIRE_RAW_BYTES_MAX + 65536);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_buf_fini(&f->out);
    ef_wire_reader_free(f->reader);
    ef_wire_keys_free(f->keys);
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

static void
encode(struct fixture *f)
{
    if (ef_wire_encode(f->keys, &f->header, &f->sample.batch.base, &f->out, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
}

/* Puts the batch behind a good MAC without the checks of encode. */
static void
seal(struct fixture *f)
{
    size_t bytes = protobuf_c_message_get_packed_size(&f->sample.batch.base);
    uint8_t *raw = malloc(bytes);

    protobuf_c_message_pack(&f->sample.batch.base, raw);
    assert_int_equal(ef_wire_seal(f->keys, &f->header, raw, bytes, &f->out, &f->err), EF_OK);
    free(raw);
}

static void
seal_raw(struct fixture *f, const void *raw, size_t bytes)
{
    assert_int_equal(ef_wire_seal(f->keys, &f->header, raw, bytes, &f->out, &f->err), EF_OK);
}

/* Computes the MAC again after the header or payload was changed. */
static void
sign_again(struct fixture *f)
{
    uint32_t id;
    const uint8_t *key = ef_wire_keys_first(f->keys, &id);

    ef_wire_mac(key, f->out.data, f->out.data + EF_WIRE_HEADER_BYTES,
                f->out.len - EF_WIRE_HEADER_BYTES, f->out.data + EF_WIRE_SIGNED_BYTES);
}

/* Decodes an exact-size copy, so that the address sanitizer sees one byte too far. */
static ef_rc
decode_bytes(struct fixture *f, const uint8_t *data, size_t len)
{
    struct ef_wire_header header = {.kind = 99};
    const ProtobufCMessage *message = NULL;
    uint8_t *copy = malloc(len > 0 ? len : 1);
    ef_rc rc;

    memcpy(copy, data, len);
    rc = ef_wire_decode(f->reader, EF_WIRE_BATCH, copy, len, &header, &message, &f->err);
    free(copy);
    if (rc != EF_OK) {
        assert_null(message);
        assert_int_equal(header.kind, 99);
        assert_int_equal(f->err.rc, rc);
        assert_true(f->err.msg[0] != 0);
    }
    return rc;
}

static ef_rc
decode(struct fixture *f)
{
    return decode_bytes(f, f->out.data, f->out.len);
}

static const Everflame__V1__Batch *
decode_good(struct fixture *f)
{
    const ProtobufCMessage *message = NULL;

    if (ef_wire_decode(f->reader, EF_WIRE_BATCH, f->out.data, f->out.len, &f->header, &message,
                       &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
    return (const Everflame__V1__Batch *)message;
}

/* Packing is canonical, so equal bytes mean equal messages. */
static void
assert_same_message(const ProtobufCMessage *a, const ProtobufCMessage *b)
{
    size_t bytes = protobuf_c_message_get_packed_size(a);
    uint8_t *packed_a = malloc(bytes + 1), *packed_b = malloc(bytes + 1);

    assert_int_equal(protobuf_c_message_get_packed_size(b), bytes);
    protobuf_c_message_pack(a, packed_a);
    protobuf_c_message_pack(b, packed_b);
    assert_memory_equal(packed_a, packed_b, bytes);
    free(packed_a);
    free(packed_b);
}

static void
round_trip_keeps_header_and_message(void **state)
{
    struct fixture *f = *state;
    const Everflame__V1__Batch *batch;

    encode(f);
    memset(&f->header, 0, sizeof(f->header));
    batch = decode_good(f);
    assert_int_equal(f->header.kind, EF_WIRE_BATCH);
    assert_int_equal(f->header.key_id, 7);
    assert_int_equal(f->header.epoch, 11);
    assert_int_equal(f->header.sequence, 12);
    assert_memory_equal(f->header.publisher, "0123456789abcdef", 16);
    assert_int_equal(f->header.raw_bytes,
                     protobuf_c_message_get_packed_size(&f->sample.batch.base));
    assert_same_message(&f->sample.batch.base, &batch->base);
    assert_string_equal(batch->sources[1]->label_names[1], "größe");
}

static void
round_trip_works_compressed_and_plain(void **state)
{
    struct fixture *f = *state;
    struct ef_wire_header header;

    encode(f);
    assert_int_equal(ef_wire_peek(f->out.data, f->out.len, &header, &f->err), EF_OK);
    assert_int_equal(header.flags, EF_WIRE_FLAG_ZSTD);
    assert_true(f->out.len < header.raw_bytes);
    f->sample.batch.n_definitions = f->sample.batch.n_fragments = f->sample.batch.n_usages = 0;
    f->sample.batch.n_sources = 1;
    encode(f);
    assert_int_equal(ef_wire_peek(f->out.data, f->out.len, &header, &f->err), EF_OK);
    assert_int_equal(header.flags, 0);
    assert_int_equal(f->out.len, EF_WIRE_HEADER_BYTES + header.raw_bytes);
    assert_same_message(&f->sample.batch.base, &decode_good(f)->base);
}

static void
empty_batch_round_trips(void **state)
{
    struct fixture *f = *state;

    everflame__v1__batch__init(&f->sample.batch);
    encode(f);
    assert_int_equal(f->out.len, EF_WIRE_HEADER_BYTES);
    assert_int_equal(decode_good(f)->n_sources, 0);
}

static void
syncs_round_trip(void **state)
{
    struct fixture *f = *state;
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__EpochState epoch = EVERFLAME__V1__EPOCH_STATE__INIT, *epochs = &epoch;
    Everflame__V1__Lost lost = EVERFLAME__V1__LOST__INIT;
    Everflame__V1__TargetStatus target = EVERFLAME__V1__TARGET_STATUS__INIT, *targets = &target;
    Everflame__V1__Source nobody = EVERFLAME__V1__SOURCE__INIT;
    uint64_t sequence[2] = {1, 2}, samples[2] = {100, 0};
    uint32_t fragments[2] = {5, 0};
    const ProtobufCMessage *message = NULL;

    lost.n_sequence = lost.n_fragments = lost.n_samples = 2;
    lost.sequence = sequence;
    lost.fragments = fragments;
    lost.samples = samples;
    epoch.epoch = 4;
    epoch.first_sequence = 3;
    epoch.last_sequence = 2;
    epoch.lost = &lost;
    target.source = &nobody;
    target.state = "unreachable";
    target.cpu_ratio = 0.002;
    request.now_ns = 5;
    request.name = "host/agent";
    request.n_epochs = 1;
    request.epochs = &epochs;
    request.n_targets = 1;
    request.targets = &targets;
    f->header.kind = EF_WIRE_SYNC_REQUEST;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &request.base, &f->out, &f->err), EF_OK);
    assert_int_equal(ef_wire_decode(f->reader, EF_WIRE_SYNC_REQUEST, f->out.data, f->out.len,
                                    &f->header, &message, &f->err),
                     EF_OK);
    assert_same_message(&request.base, message);
    target.cpu_ratio = (double)INFINITY;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &request.base, &f->out, &f->err),
                     EF_EINVAL);
    target.cpu_ratio = 0;
    sequence[1] = 1;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &request.base, &f->out, &f->err),
                     EF_EINVAL);
    sequence[1] = 2;
    epoch.first_sequence = 4;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &request.base, &f->out, &f->err),
                     EF_EINVAL);
}

static void
replies_are_checked(void **state)
{
    struct fixture *f = *state;
    Everflame__V1__SyncReply reply = EVERFLAME__V1__SYNC_REPLY__INIT;
    Everflame__V1__EpochReply epoch = EVERFLAME__V1__EPOCH_REPLY__INIT, *epochs = &epoch;
    Everflame__V1__Wanted wanted = EVERFLAME__V1__WANTED__INIT, *wanted_list = &wanted;
    Everflame__V1__Directive directive = EVERFLAME__V1__DIRECTIVE__INIT, *directives = &directive;
    uint64_t first[1] = {3}, last[1] = {9}, hash[2] = {1, 2};
    const ProtobufCMessage *message = NULL;

    epoch.n_missing_first = epoch.n_missing_last = 1;
    epoch.missing_first = first;
    epoch.missing_last = last;
    wanted.account = wanted.worker = wanted.version = "x";
    wanted.n_stack_hash = 2;
    wanted.stack_hash = hash;
    directive.kind = 77; /* of a later version */
    directive.id = "d1";
    reply.n_epochs = reply.n_wanted = reply.n_directives = 1;
    reply.epochs = &epochs;
    reply.wanted = &wanted_list;
    reply.directives = &directives;
    f->header.kind = EF_WIRE_SYNC_REPLY;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &reply.base, &f->out, &f->err), EF_OK);
    assert_int_equal(ef_wire_decode(f->reader, EF_WIRE_SYNC_REPLY, f->out.data, f->out.len,
                                    &f->header, &message, &f->err),
                     EF_OK);
    assert_same_message(&reply.base, message);
    first[0] = 10;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &reply.base, &f->out, &f->err), EF_EINVAL);
    first[0] = 3;
    wanted.worker = "";
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &reply.base, &f->out, &f->err), EF_EINVAL);
}

static void
decode_refuses_other_kind(void **state)
{
    struct fixture *f = *state;
    const ProtobufCMessage *message = NULL;

    encode(f);
    assert_int_equal(ef_wire_decode(f->reader, EF_WIRE_SYNC_REPLY, f->out.data, f->out.len,
                                    &f->header, &message, &f->err),
                     EF_ECORRUPT);
    assert_null(message);
    f->header.kind = EF_WIRE_SYNC_REPLY;
    assert_int_equal(ef_wire_encode(f->keys, &f->header, &f->sample.batch.base, &f->out, &f->err),
                     EF_EINVAL);
}

static void
decode_refuses_forged_mac_wrong_key_and_unknown_id(void **state)
{
    struct fixture *f = *state;
    struct ef_wire_keys *other = ef_wire_sample_keys(f->folder, 7, 0x5b);
    struct ef_wire_keys *unknown = ef_wire_sample_keys(f->folder, 8, 0x5a);
    struct ef_wire_keys *zero = NULL;

    encode(f);
    memset(f->out.data + EF_WIRE_SIGNED_BYTES, 0, 16);
    assert_int_equal(decode(f), EF_EAUTH);
    assert_int_equal(ef_wire_encode(other, &f->header, &f->sample.batch.base, &f->out, &f->err),
                     EF_OK);
    assert_int_equal(decode(f), EF_EAUTH);
    assert_int_equal(ef_wire_encode(unknown, &f->header, &f->sample.batch.base, &f->out, &f->err),
                     EF_OK);
    assert_int_equal(decode(f), EF_EAUTH);
    assert_non_null(strstr(f->err.msg, "key 8"));
    /* A ring with keys does not take the well-known key 0. */
    assert_int_equal(ef_wire_keys_open(NULL, &zero, &f->err), EF_OK);
    assert_false(ef_wire_keys_authenticate(zero));
    assert_true(ef_wire_keys_authenticate(f->keys));
    assert_int_equal(ef_wire_encode(zero, &f->header, &f->sample.batch.base, &f->out, &f->err),
                     EF_OK);
    assert_int_equal(decode(f), EF_EAUTH);
    ef_wire_keys_free(other);
    ef_wire_keys_free(unknown);
    ef_wire_keys_free(zero);
}

static void
decode_refuses_every_truncation(void **state)
{
    struct fixture *f = *state;

    encode(f);
    for (size_t len = 0; len < f->out.len; len++)
        assert_int_not_equal(decode_bytes(f, f->out.data, len), EF_OK);
    assert_int_equal(decode(f), EF_OK);
}

static void
decode_refuses_every_flipped_bit(void **state)
{
    struct fixture *f = *state;

    encode(f);
    for (size_t i = 0; i < f->out.len * 8; i++) {
        f->out.data[i / 8] ^= (uint8_t)(1u << (i % 8));
        assert_int_not_equal(decode(f), EF_OK);
        f->out.data[i / 8] ^= (uint8_t)(1u << (i % 8));
    }
    assert_int_equal(decode(f), EF_OK);
}

/* Goal: damage behind a good MAC (a broken peer with a key) never crashes; most is refused. */
static void
decode_survives_damage_behind_a_good_mac(void **state)
{
    struct fixture *f = *state;
    size_t bytes = protobuf_c_message_get_packed_size(&f->sample.batch.base);
    uint8_t *raw = malloc(bytes);
    unsigned refused = 0;

    protobuf_c_message_pack(&f->sample.batch.base, raw);
    for (size_t i = 0; i < bytes; i++) {
        for (int flip = 1; flip < 256; flip += flip) {
            raw[i] ^= (uint8_t)flip;
            seal_raw(f, raw, bytes);
            refused += decode(f) != EF_OK;
            raw[i] ^= (uint8_t)flip;
        }
    }
    for (size_t len = 0; len < bytes; len++) {
        seal_raw(f, raw, len);
        EF_IGNORE(decode(f), "a cut between fields is a good message");
    }
    assert_true(refused > bytes);
    free(raw);
}

static void
decode_refuses_lies_about_raw_bytes(void **state)
{
    struct fixture *f = *state;
    uint32_t raw_bytes;

    for (int compressed = 1; compressed >= 0; compressed--) {
        if (!compressed) {
            f->sample.batch.n_definitions = f->sample.batch.n_fragments = 0;
            f->sample.batch.n_usages = 0, f->sample.batch.n_sources = 1;
        }
        encode(f);
        raw_bytes = f->header.raw_bytes;
        assert_int_equal(f->header.flags, compressed);
        for (int lie = -1; lie <= 1; lie += 2) {
            f->out.data[12] = (uint8_t)(raw_bytes + (uint32_t)lie);
            sign_again(f);
            assert_int_equal(decode(f), EF_ECORRUPT);
        }
        f->out.data[15] = 0x7f; /* 2 GiB */
        sign_again(f);
        assert_int_equal(decode(f), EF_ELIMIT);
    }
}

/* Goal: a frame that declares little and expands to much is stopped at what it declared. */
static void
decode_refuses_zstd_bombs(void **state)
{
    struct fixture *f = *state;
    size_t bomb_bytes = 64u << 20;
    uint8_t *zeros = calloc(1, bomb_bytes);
    uint8_t *frame = malloc(ZSTD_compressBound(bomb_bytes));
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    size_t bytes;

    encode(f); /* for a header */
    for (int declare = 0; declare <= 1; declare++) {
        ZSTD_CCtx_setParameter(ctx, ZSTD_c_contentSizeFlag, declare);
        bytes = ZSTD_compress2(ctx, frame, ZSTD_compressBound(bomb_bytes), zeros, bomb_bytes);
        assert_false(ZSTD_isError(bytes));
        f->out.len = EF_WIRE_HEADER_BYTES;
        assert_true(ef_buf_append(&f->out, frame, bytes));
        f->out.data[5] = EF_WIRE_FLAG_ZSTD;
        sign_again(f);
        assert_int_equal(decode(f), EF_ECORRUPT);
    }
    /* A second frame behind the first adds bytes that nobody declared. */
    bytes = ZSTD_compress(frame, ZSTD_compressBound(bomb_bytes), zeros, 1000, 3);
    bytes +=
        ZSTD_compress(frame + bytes, ZSTD_compressBound(bomb_bytes) - bytes, zeros, bomb_bytes, 3);
    f->out.len = EF_WIRE_HEADER_BYTES;
    assert_true(ef_buf_append(&f->out, frame, bytes));
    memcpy(f->out.data + 12, "\xe8\x03\0\0", 4); /* 1000 */
    sign_again(f);
    assert_int_equal(decode(f), EF_ECORRUPT);
    ZSTD_freeCCtx(ctx);
    free(zeros);
    free(frame);
}

/* Goal: small input that protobuf-c turns into much memory is capped, honestly named, and harmless.
 */
static void
decode_caps_memory_of_hostile_messages(void **state)
{
    struct fixture *f = *state;
    size_t bytes = 1u << 20;
    uint8_t *raw = malloc(bytes);

    for (size_t i = 0; i + 1 < bytes; i += 2) {
        raw[i] = 0x0a; /* an empty Source: 2 bytes on the wire, 130 in memory */
        raw[i + 1] = 0;
    }
    seal_raw(f, raw, bytes);
    assert_int_equal(decode(f), EF_ELIMIT);
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        raw[i] = 0x78; /* unknown field 15 */
        raw[i + 1] = 1;
    }
    seal_raw(f, raw, bytes);
    assert_int_equal(decode(f), EF_ELIMIT);
    assert_true(ef_wire_reader_arena(f->reader)->bytes_used <= 16 * bytes + 65536);
    free(raw);
    encode(f);
    assert_int_equal(decode(f), EF_OK);
}

static void
decode_survives_nested_garbage(void **state)
{
    struct fixture *f = *state;
    static const uint8_t tags[] = {0x0a, 0x12, 0x1a, 0x22};
    uint8_t raw[40000];

    for (size_t t = 0; t < sizeof(tags); t++) {
        size_t at = sizeof(raw), len = 0;
        /* From the inside out: each level wraps the one before as a length-delimited field. */
        while (at > 8) {
            size_t need = len < 128 ? 2 : len < 16384 ? 3 : 4;
            size_t rest = len;
            at -= need;
            raw[at] = tags[t];
            for (size_t i = 1; i < need; i++, rest >>= 7)
                raw[at + i] = (uint8_t)((rest & 0x7f) | (i + 1 < need ? 0x80 : 0));
            len += need;
        }
        seal_raw(f, raw + at, len);
        assert_int_not_equal(decode(f), EF_OK);
    }
}

static void
decode_refuses_garbage(void **state)
{
    struct fixture *f = *state;
    uint64_t seed = ef_test_seed();
    uint8_t raw[600];

    for (int round = 0; round < 2000; round++) {
        size_t len = 1 + (size_t)(seed >> 40) % (sizeof(raw) - 1);
        for (size_t i = 0; i < len; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            raw[i] = (uint8_t)(seed >> 56);
        }
        assert_int_not_equal(decode_bytes(f, raw, len), EF_OK);
        seal_raw(f, raw, len);
        EF_IGNORE(decode(f), "random bytes may be an empty message of unknown fields");
    }
}

static void
oversize_is_refused_on_both_sides(void **state)
{
    struct fixture *f = *state;
    size_t bytes = EF_WIRE_RAW_BYTES_MAX + 1;
    uint8_t *raw = malloc(bytes);
    uint64_t seed = 1;

    for (size_t i = 0; i < bytes; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        raw[i] = (uint8_t)(seed >> 56);
    }
    assert_int_equal(ef_wire_seal(f->keys, &f->header, raw, bytes, &f->out, &f->err), EF_ELIMIT);
    /* Below the raw limit, but it does not compress below the limit of a message. */
    assert_int_equal(
        ef_wire_seal(f->keys, &f->header, raw, EF_WIRE_BATCH_BYTES_MAX, &f->out, &f->err),
        EF_ELIMIT);
    assert_int_equal(decode_bytes(f, raw, EF_WIRE_BATCH_BYTES_MAX + 1), EF_ELIMIT);
    free(raw);
}

static void
later_versions_and_unknown_bits_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_wire_header header;

    encode(f);
    f->out.data[6] = EF_WIRE_VERSION + 1;
    sign_again(f);
    assert_int_equal(decode(f), EF_EUNSUP);
    assert_int_equal(ef_wire_peek(f->out.data, f->out.len, &header, &f->err), EF_EUNSUP);
    f->out.data[6] = 0;
    sign_again(f);
    assert_int_equal(decode(f), EF_ECORRUPT);
    encode(f);
    f->out.data[7] = 1;
    sign_again(f);
    assert_int_equal(decode(f), EF_ECORRUPT);
    encode(f);
    f->out.data[5] |= 2;
    sign_again(f);
    assert_int_equal(decode(f), EF_ECORRUPT);
    encode(f);
    f->out.data[0] = 'X';
    assert_int_equal(decode(f), EF_ECORRUPT);
}

/* Both sides refuse the batch as it is now, and say a word of the reason. */
static void
assert_refused(struct fixture *f, const char *word)
{
    ef_rc rc = ef_wire_encode(f->keys, &f->header, &f->sample.batch.base, &f->out, &f->err);

    assert_true(rc == EF_EINVAL || rc == EF_ELIMIT);
    assert_int_equal(f->err.rc, rc);
    seal(f);
    rc = decode(f);
    assert_true(rc == EF_ECORRUPT || rc == EF_ELIMIT);
    if (strstr(f->err.msg, word) == NULL)
        fail_msg("'%s' is not in '%s'", word, f->err.msg);
    ef_wire_sample_init(&f->sample);
    seal(f);
    assert_int_equal(decode(f), EF_OK);
}

static void
bad_names_are_refused(void **state)
{
    struct fixture *f = *state;
    static char long_name[EF_WIRE_NAME_BYTES_MAX + 2], long_text[EF_WIRE_TEXT_BYTES_MAX + 2];

    memset(long_name, 'n', sizeof(long_name) - 1);
    memset(long_text, 't', sizeof(long_text) - 1);
    f->sample.source[0].account = "";
    assert_refused(f, "account");
    f->sample.source[0].worker = "a\nb";
    assert_refused(f, "account");
    f->sample.source[0].version = "a long version with \x7f in it";
    assert_refused(f, "account");
    f->sample.source[1].version = "\xff";
    assert_refused(f, "source 1");
    f->sample.source[0].account = long_name;
    assert_refused(f, "account");
    f->sample.source[0].instance = "";
    assert_refused(f, "instance");
    f->sample.source[0].host = "\xc0\x80";
    assert_refused(f, "source 0");
    f->sample.source[1].label_names[0] = "";
    assert_refused(f, "label");
    f->sample.source[1].n_label_values = 1;
    assert_refused(f, "label");
    f->sample.function_name[0] = long_text;
    assert_refused(f, "4096");
    f->sample.function_file[0] = "\xed\xa0\x80"; /* a surrogate */
    assert_refused(f, "UTF-8");
    long_name[EF_WIRE_NAME_BYTES_MAX] = 0;
    long_text[EF_WIRE_TEXT_BYTES_MAX] = 0;
    f->sample.source[0].account = long_name;
    f->sample.function_name[0] = long_text;
    encode(f);
    assert_int_equal(decode(f), EF_OK);
}

static void
too_many_labels_are_refused(void **state)
{
    struct fixture *f = *state;
    char *names[EF_WIRE_LABELS_MAX + 1];

    for (int i = 0; i <= EF_WIRE_LABELS_MAX; i++)
        names[i] = "x";
    f->sample.source[0].label_names = f->sample.source[0].label_values = names;
    f->sample.source[0].n_label_names = f->sample.source[0].n_label_values = EF_WIRE_LABELS_MAX + 1;
    assert_refused(f, "labels");
}

/* Goal: protobuf-c gives text without its length, so a NUL inside would cut it silently. */
static void
nul_inside_text_is_refused(void **state)
{
    struct fixture *f = *state;
    size_t bytes = protobuf_c_message_get_packed_size(&f->sample.batch.base);
    uint8_t *raw = malloc(bytes), *at;

    protobuf_c_message_pack(&f->sample.batch.base, raw);
    at = memmem(raw, bytes, "checkout", 8);
    assert_non_null(at);
    at[3] = 0;
    seal_raw(f, raw, bytes);
    assert_int_equal(decode(f), EF_ECORRUPT);
    at[3] = 'c';
    at = memmem(raw, bytes, "parseJSON", 9);
    assert_non_null(at);
    at[8] = 0;
    seal_raw(f, raw, bytes);
    assert_int_equal(decode(f), EF_ECORRUPT);
    free(raw);
}

static void
bad_fragments_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_wire_sample *s = &f->sample;

    s->fragment[1].source = 2;
    assert_refused(f, "fragment 1");
    s->fragment[0].profile_type = EVERFLAME__V1__PROFILE_TYPE__PROFILE_TYPE_UNSPECIFIED;
    assert_refused(f, "profile type");
    s->fragment[0].profile_type = 5;
    assert_refused(f, "profile type");
    s->fragment[0].stratum = 2;
    assert_refused(f, "stratum");
    s->fragment[0].stratum = -1;
    assert_refused(f, "stratum");
    s->fragment[0].n_count = 2;
    assert_refused(f, "columns");
    s->fragment[1].n_value = 2;
    assert_refused(f, "columns");
    s->stack[2] = 0;
    assert_refused(f, "is 0");
    s->count[1] = 0;
    assert_refused(f, "is 0");
    s->count[1] = UINT64_MAX;
    assert_refused(f, "overflows");
    s->count[1] = INT64_MAX;
    assert_refused(f, "overflows");
    s->fragment[0].interval = UINT64_C(1) << 62;
    assert_refused(f, "overflows");
    s->value[0] = -1;
    assert_refused(f, "negative");
    s->value[0] = INT64_MAX;
    assert_refused(f, "overflows");
    s->fragment[0].n_tick_ms = 5;
    assert_refused(f, "tick");
    s->fragment[0].start_ns = -1;
    assert_refused(f, "start");
    s->fragment[0].start_ns = INT64_MAX - 1;
    assert_refused(f, "start");
    s->fragment[0].span_ns = UINT64_MAX;
    assert_refused(f, "span");
}

static void
too_many_stacks_are_refused(void **state)
{
    struct fixture *f = *state;
    size_t count = EF_WIRE_PAIRS_MAX + 1;
    uint64_t *ones = malloc(count * sizeof(*ones));

    for (size_t i = 0; i < count; i++)
        ones[i] = 1;
    f->sample.fragment[1].stack = f->sample.fragment[1].count = ones;
    f->sample.fragment[1].n_stack = f->sample.fragment[1].n_count = count;
    f->sample.fragment[1].n_value = 0;
    assert_refused(f, "stacks in a fragment");
    f->sample.definitions[0].stack_hash = f->sample.definitions[0].stack_function = ones;
    f->sample.definitions[0].stack_parent = calloc(count, sizeof(uint64_t));
    f->sample.definitions[0].stack_line = calloc(count, sizeof(uint32_t));
    f->sample.definitions[0].n_stack_hash = f->sample.definitions[0].n_stack_parent =
        f->sample.definitions[0].n_stack_function = f->sample.definitions[0].n_stack_line = count;
    uint64_t *parents = f->sample.definitions[0].stack_parent;
    uint32_t *lines = f->sample.definitions[0].stack_line;
    assert_refused(f, "stacks");
    free(parents);
    free(lines);
    free(ones);
}

static void
bad_definitions_and_usages_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_wire_sample *s = &f->sample;

    s->definitions[0].source = 2;
    assert_refused(f, "definitions 0");
    s->definitions[0].n_function_line = 2;
    assert_refused(f, "functions differ");
    s->definitions[0].n_stack_parent = 1;
    assert_refused(f, "stacks differ");
    s->function_hash[2] = 0;
    assert_refused(f, "hash is 0");
    s->stack_hash[0] = 0;
    assert_refused(f, "is 0");
    s->stack_function[0] = 0;
    assert_refused(f, "is 0");
    s->stack_parent[1] = s->stack_hash[1];
    assert_refused(f, "its own caller");
    s->usage[0].source = 9;
    assert_refused(f, "usage 0");
    s->usage[0].hot_cpu_ns = s->usage[0].cpu_ns + 1;
    assert_refused(f, "hot part");
    s->usage[0].hot_span_ns = s->usage[0].span_ns + 1;
    assert_refused(f, "hot part");
    s->usage[0].start_ns = -5;
    assert_refused(f, "start");
    s->usage[0].cpu_ns = UINT64_MAX;
    assert_refused(f, "CPU");
}

/* Goal: definitions answer a request and belong to no instance. */
static void
definitions_need_no_instance(void **state)
{
    struct fixture *f = *state;

    f->sample.source[0].instance = "";
    f->sample.batch.n_fragments = f->sample.batch.n_usages = 0;
    encode(f);
    assert_int_equal(decode(f), EF_OK);
}

static void
write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

#define DIGITS "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static void
key_files_are_read_and_faults_named(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text;
        ef_rc rc;
        const char *word;
    } cases[] = {
        {"", EF_EINVAL, "no key"},
        {"# only a comment\n\n", EF_EINVAL, "no key"},
        {"0 " DIGITS "\n", EF_EINVAL, "line 1"},
        {"4294967296 " DIGITS "\n", EF_EINVAL, "line 1"},
        {"-1 " DIGITS "\n", EF_EINVAL, "line 1"},
        {"1 " DIGITS "0\n", EF_EINVAL, "line 1"},
        {"1 0011\n", EF_EINVAL, "line 1"},
        {"1 " DIGITS " 2\n", EF_EINVAL, "line 1"},
        {"1 " DIGITS "\n1 " DIGITS "\n", EF_EINVAL, "line 2"},
        {"1 " DIGITS "\n2 xyz" DIGITS "\n", EF_EINVAL, "line 2"},
    };
    struct ef_wire_keys *keys = NULL;
    char path[600], many[80 * 70] = "";
    uint32_t id;

    snprintf(path, sizeof(path), "%s/keys", f->folder);
    assert_int_equal(ef_wire_keys_open(path, &keys, &f->err), EF_ENOTFOUND);
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        write_file(path, cases[i].text);
        assert_int_equal(ef_wire_keys_open(path, &keys, &f->err), cases[i].rc);
        assert_null(keys);
        assert_non_null(strstr(f->err.msg, cases[i].word));
        assert_null(strstr(f->err.msg, "0011")); /* a key is never part of a message */
    }
    for (int i = 1; i <= EF_WIRE_KEYS_MAX + 1; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), "%d %s\n", i, DIGITS);
    write_file(path, many);
    assert_int_equal(ef_wire_keys_open(path, &keys, &f->err), EF_ELIMIT);
    write_file(path, "# ring\n  9\t" DIGITS "  # new\r\n4294967295 " DIGITS);
    assert_int_equal(ef_wire_keys_open(path, &keys, &f->err), EF_OK);
    assert_int_equal(ef_wire_keys_first(keys, &id)[1], 0x11);
    assert_int_equal(id, 9);
    assert_non_null(ef_wire_keys_find(keys, UINT32_MAX));
    assert_null(ef_wire_keys_find(keys, 0));
    ef_wire_keys_free(keys);
}

/* Goal: whichever allocation fails, decode says so, gives nothing, and works again afterwards. */
static void
decode_survives_each_failing_allocation(void **state)
{
    struct fixture *f = *state;
    struct ef_wire_arena *arena = ef_wire_reader_arena(f->reader);
    uint64_t allocations;

    encode(f);
    assert_int_equal(decode(f), EF_OK);
    allocations = arena->allocations;
    assert_true(allocations > 30);
    for (uint64_t n = 1; n <= allocations; n++) {
        arena->fail_at = n;
        assert_int_equal(decode(f), EF_ENOMEM);
    }
    arena->fail_at = 0;
    assert_int_equal(decode(f), EF_OK);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(round_trip_keeps_header_and_message),
        TEST(round_trip_works_compressed_and_plain),
        TEST(empty_batch_round_trips),
        TEST(syncs_round_trip),
        TEST(replies_are_checked),
        TEST(decode_refuses_other_kind),
        TEST(decode_refuses_forged_mac_wrong_key_and_unknown_id),
        TEST(decode_refuses_every_truncation),
        TEST(decode_refuses_every_flipped_bit),
        TEST(decode_survives_damage_behind_a_good_mac),
        TEST(decode_refuses_lies_about_raw_bytes),
        TEST(decode_refuses_zstd_bombs),
        TEST(decode_caps_memory_of_hostile_messages),
        TEST(decode_survives_nested_garbage),
        TEST(decode_refuses_garbage),
        TEST(oversize_is_refused_on_both_sides),
        TEST(later_versions_and_unknown_bits_are_refused),
        TEST(bad_names_are_refused),
        TEST(too_many_labels_are_refused),
        TEST(nul_inside_text_is_refused),
        TEST(bad_fragments_are_refused),
        TEST(too_many_stacks_are_refused),
        TEST(bad_definitions_and_usages_are_refused),
        TEST(definitions_need_no_instance),
        TEST(key_files_are_read_and_faults_named),
        TEST(decode_survives_each_failing_allocation),
    };

    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
