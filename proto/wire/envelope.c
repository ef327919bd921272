/*
 * Decides the byte form of the header, when compression pays, and the order of the checks: sizes
 * before the MAC, the MAC before anything is decompressed or parsed. Must not know what the payload
 * means. Any thread.
 */
#include "proto/wire/envelope.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>
#include <zstd.h>

#define MAGIC "EFW1"
#define ZSTD_LEVEL 3
/* Below this zstd's frame header outweighs what it saves (measured: 150 B grow by 9 B). */
#define COMPRESS_BYTES_MIN 160u
/*
 * Compressed batches cost the collector 5 to 10 µs more, so a gain of less than 1/16 is not taken:
 * hashes alone do not compress, and an everyday batch is mostly hashes.
 */
#define COMPRESS_GAIN_SHIFT 4

/* Header offsets. */
enum {
    AT_KIND = 4,
    AT_FLAGS = 5,
    AT_VERSION = 6,
    AT_RESERVED = 7,
    AT_KEY_ID = 8,
    AT_RAW_BYTES = 12,
    AT_PUBLISHER = 16,
    AT_EPOCH = 32,
    AT_SEQUENCE = 40,
    AT_MAC = 48
};
_Static_assert(AT_MAC + EF_WIRE_MAC_BYTES == EF_WIRE_HEADER_BYTES, "the MAC ends the header");
_Static_assert(AT_MAC == EF_WIRE_SIGNED_BYTES, "all before the MAC is signed");

void
ef_wire_mac(const uint8_t key[EF_WIRE_KEY_BYTES], const uint8_t *signed_part,
            const uint8_t *payload, size_t payload_bytes, uint8_t ret_mac[EF_WIRE_MAC_BYTES])
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, key, EF_WIRE_KEY_BYTES, EF_WIRE_MAC_BYTES);
    crypto_generichash_update(&state, signed_part, EF_WIRE_SIGNED_BYTES);
    crypto_generichash_update(&state, payload, payload_bytes);
    crypto_generichash_final(&state, ret_mac, EF_WIRE_MAC_BYTES);
}

static void
write_header(const struct ef_wire_header *header, uint8_t *at)
{
    memcpy(at, MAGIC, 4);
    at[AT_KIND] = header->kind;
    at[AT_FLAGS] = header->flags;
    at[AT_VERSION] = EF_WIRE_VERSION;
    at[AT_RESERVED] = 0;
    ef_put_le(at + AT_KEY_ID, header->key_id, 4);
    ef_put_le(at + AT_RAW_BYTES, header->raw_bytes, 4);
    memcpy(at + AT_PUBLISHER, header->publisher, EF_WIRE_PUBLISHER_BYTES);
    ef_put_le(at + AT_EPOCH, header->epoch, 8);
    ef_put_le(at + AT_SEQUENCE, header->sequence, 8);
}

/* One context for all threads that send with this ring; who finds it taken makes one for himself.
 */
struct ef_wire_compressor {
    pthread_mutex_t lock; /* guards ctx; a leaf: nothing is called with it held but zstd */
    ZSTD_CCtx *ctx;
};

struct ef_wire_compressor *
ef_wire_compressor_open(void)
{
    struct ef_wire_compressor *compressor = calloc(1, sizeof(*compressor));

    if (compressor == NULL)
        return NULL;
    compressor->ctx = ZSTD_createCCtx();
    if (compressor->ctx == NULL || pthread_mutex_init(&compressor->lock, NULL) != 0) {
        ZSTD_freeCCtx(compressor->ctx);
        free(compressor);
        return NULL;
    }
    return compressor;
}

void
ef_wire_compressor_free(struct ef_wire_compressor *compressor)
{
    if (compressor == NULL)
        return;
    ZSTD_freeCCtx(compressor->ctx);
    pthread_mutex_destroy(&compressor->lock);
    free(compressor);
}

static size_t
compress(struct ef_wire_compressor *compressor, uint8_t *out, size_t cap, const uint8_t *raw,
         size_t raw_bytes)
{
    size_t bytes;

    if (pthread_mutex_trylock(&compressor->lock) != 0)
        return ZSTD_compress(out, cap, raw, raw_bytes, ZSTD_LEVEL);
    bytes = ZSTD_compressCCtx(compressor->ctx, out, cap, raw, raw_bytes, ZSTD_LEVEL);
    pthread_mutex_unlock(&compressor->lock);
    return bytes;
}

/* Writes the payload behind the header. Gives its bytes, 0 when it does not fit. */
static size_t
write_payload(struct ef_wire_compressor *compressor, const uint8_t *raw, size_t raw_bytes,
              struct ef_buf *out, uint8_t *ret_flags)
{
    if (raw_bytes >= COMPRESS_BYTES_MIN &&
        ef_buf_reserve(out, EF_WIRE_HEADER_BYTES + ZSTD_compressBound(raw_bytes))) {
        size_t bytes = compress(compressor, out->data + EF_WIRE_HEADER_BYTES,
                                out->cap - EF_WIRE_HEADER_BYTES, raw, raw_bytes);
        if (!ZSTD_isError(bytes) && bytes < raw_bytes - (raw_bytes >> COMPRESS_GAIN_SHIFT)) {
            *ret_flags = EF_WIRE_FLAG_ZSTD;
            return bytes;
        }
    }
    *ret_flags = 0;
    out->failed = false; /* the reserve above asks for more than is needed now */
    if (!ef_buf_reserve(out, EF_WIRE_HEADER_BYTES + raw_bytes))
        return 0;
    if (raw_bytes > 0)
        memcpy(out->data + EF_WIRE_HEADER_BYTES, raw, raw_bytes);
    return raw_bytes;
}

ef_rc
ef_wire_seal(const struct ef_wire_keys *keys, struct ef_wire_header *header, const uint8_t *raw,
             size_t raw_bytes, struct ef_buf *out, struct ef_err *err)
{
    const uint8_t *key = ef_wire_keys_first(keys, &header->key_id);
    size_t bytes;

    if (raw_bytes > EF_WIRE_RAW_BYTES_MAX)
        return ef_err_set(err, EF_ELIMIT, "message of %zu bytes is larger than %u", raw_bytes,
                          EF_WIRE_RAW_BYTES_MAX);
    ef_buf_clear(out);
    header->raw_bytes = (uint32_t)raw_bytes;
    bytes = write_payload(ef_wire_keys_compressor(keys), raw, raw_bytes, out, &header->flags);
    if (out->failed)
        return ef_buf_check(out, "message", err);
    if (bytes > EF_WIRE_BATCH_BYTES_MAX - EF_WIRE_HEADER_BYTES)
        return ef_err_set(err, EF_ELIMIT, "message of %zu bytes, %zu as sent, is larger than %u",
                          raw_bytes, bytes, EF_WIRE_BATCH_BYTES_MAX);
    write_header(header, out->data);
    ef_wire_mac(key, out->data, out->data + EF_WIRE_HEADER_BYTES, bytes, out->data + AT_MAC);
    out->len = EF_WIRE_HEADER_BYTES + bytes;
    return EF_OK;
}

static ef_rc
read_header(const uint8_t *data, size_t len, struct ef_wire_header *ret_header, struct ef_err *err)
{
    struct ef_wire_header header = {0};

    if (len < EF_WIRE_HEADER_BYTES)
        return ef_err_set(err, EF_ECORRUPT, "message of %zu bytes is shorter than its header", len);
    if (memcmp(data, MAGIC, 4) != 0)
        return ef_err_set(err, EF_ECORRUPT, "not an Everflame message");
    if (data[AT_VERSION] > EF_WIRE_VERSION)
        return ef_err_set(err, EF_EUNSUP, "message of version %d, this program knows up to %d",
                          data[AT_VERSION], EF_WIRE_VERSION);
    if (data[AT_VERSION] == 0 || data[AT_RESERVED] != 0 ||
        (data[AT_FLAGS] & ~EF_WIRE_FLAG_ZSTD) != 0)
        return ef_err_set(err, EF_ECORRUPT, "message header has unknown bits");
    header.kind = data[AT_KIND];
    header.flags = data[AT_FLAGS];
    header.key_id = (uint32_t)ef_get_le(data + AT_KEY_ID, 4);
    header.raw_bytes = (uint32_t)ef_get_le(data + AT_RAW_BYTES, 4);
    memcpy(header.publisher, data + AT_PUBLISHER, EF_WIRE_PUBLISHER_BYTES);
    header.epoch = ef_get_le(data + AT_EPOCH, 8);
    header.sequence = ef_get_le(data + AT_SEQUENCE, 8);
    *ret_header = header;
    return EF_OK;
}

ef_rc
ef_wire_peek(const void *data, size_t len, struct ef_wire_header *ret_header, struct ef_err *err)
{
    return read_header(data, len, ret_header, err);
}

ef_rc
ef_wire_sign_again(const struct ef_wire_keys *keys, uint8_t *data, size_t len, struct ef_err *err)
{
    struct ef_wire_header header;
    uint32_t id;
    const uint8_t *key = ef_wire_keys_first(keys, &id);
    ef_rc rc = read_header(data, len, &header, err);

    if (rc != EF_OK)
        return rc;
    ef_put_le(data + AT_KEY_ID, id, 4);
    ef_wire_mac(key, data, data + EF_WIRE_HEADER_BYTES, len - EF_WIRE_HEADER_BYTES, data + AT_MAC);
    return EF_OK;
}

struct ef_wire_unsealer {
    ZSTD_DCtx *ctx;
    struct ef_buf raw;
};

struct ef_wire_unsealer *
ef_wire_unsealer_open(void)
{
    struct ef_wire_unsealer *unsealer = calloc(1, sizeof(*unsealer));

    if (unsealer == NULL)
        return NULL;
    ef_buf_init(&unsealer->raw, EF_WIRE_RAW_BYTES_MAX);
    unsealer->ctx = ZSTD_createDCtx();
    if (unsealer->ctx == NULL) {
        free(unsealer);
        return NULL;
    }
    return unsealer;
}

void
ef_wire_unsealer_free(struct ef_wire_unsealer *unsealer)
{
    if (unsealer == NULL)
        return;
    ZSTD_freeDCtx(unsealer->ctx);
    ef_buf_fini(&unsealer->raw);
    free(unsealer);
}

static ef_rc
decompress(struct ef_wire_unsealer *unsealer, const uint8_t *payload, size_t bytes,
           size_t raw_bytes, struct ef_err *err)
{
    unsigned long long content_bytes = ZSTD_getFrameContentSize(payload, bytes);
    size_t got;

    /* The two "unknown" answers of zstd are larger than any raw size and are refused here too. */
    if (content_bytes != raw_bytes)
        return ef_err_set(err, EF_ECORRUPT, "message does not hold the %zu bytes it declares",
                          raw_bytes);
    ef_buf_clear(&unsealer->raw);
    if (!ef_buf_reserve(&unsealer->raw, raw_bytes))
        return ef_buf_check(&unsealer->raw, "decompressed message", err);
    got = ZSTD_decompressDCtx(unsealer->ctx, unsealer->raw.data, raw_bytes, payload, bytes);
    if (ZSTD_isError(got) || got != raw_bytes)
        return ef_err_set(err, EF_ECORRUPT, "message cannot be decompressed: %s",
                          ZSTD_isError(got) ? ZSTD_getErrorName(got) : "wrong size");
    return EF_OK;
}

static ef_rc
authenticate(const struct ef_wire_keys *keys, uint32_t key_id, const uint8_t *data, size_t len,
             struct ef_err *err)
{
    const uint8_t *key = ef_wire_keys_find(keys, key_id);
    uint8_t mac[EF_WIRE_MAC_BYTES];

    if (key == NULL)
        return ef_err_set(err, EF_EAUTH, "key %u is not known", key_id);
    ef_wire_mac(key, data, data + EF_WIRE_HEADER_BYTES, len - EF_WIRE_HEADER_BYTES, mac);
    if (sodium_memcmp(mac, data + AT_MAC, sizeof(mac)) != 0)
        return ef_err_set(err, EF_EAUTH, "MAC under key %u is wrong: forged, damaged or cut",
                          key_id);
    return EF_OK;
}

ef_rc
ef_wire_unseal(struct ef_wire_unsealer *unsealer, const struct ef_wire_keys *keys,
               const uint8_t *data, size_t len, struct ef_wire_header *ret_header,
               const uint8_t **ret_raw, size_t *ret_raw_bytes, struct ef_err *err)
{
    struct ef_wire_header header = {0};
    ef_rc rc;

    if (len > EF_WIRE_BATCH_BYTES_MAX)
        return ef_err_set(err, EF_ELIMIT, "message of %zu bytes is larger than %u", len,
                          EF_WIRE_BATCH_BYTES_MAX);
    rc = read_header(data, len, &header, err);
    if (rc != EF_OK)
        return rc;
    if (header.raw_bytes > EF_WIRE_RAW_BYTES_MAX)
        return ef_err_set(err, EF_ELIMIT, "message declares %u bytes, more than %u",
                          header.raw_bytes, EF_WIRE_RAW_BYTES_MAX);
    rc = authenticate(keys, header.key_id, data, len, err);
    if (rc != EF_OK)
        return rc;
    len -= EF_WIRE_HEADER_BYTES;
    data += EF_WIRE_HEADER_BYTES;
    if ((header.flags & EF_WIRE_FLAG_ZSTD) == 0) {
        if (len != header.raw_bytes)
            return ef_err_set(err, EF_ECORRUPT, "message holds %zu bytes but declares %u", len,
                              header.raw_bytes);
        *ret_raw = data;
    } else {
        rc = decompress(unsealer, data, len, header.raw_bytes, err);
        if (rc != EF_OK)
            return rc;
        *ret_raw = unsealer->raw.data;
    }
    *ret_raw_bytes = header.raw_bytes;
    *ret_header = header;
    return EF_OK;
}
