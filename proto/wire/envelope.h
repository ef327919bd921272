/*
 * Header, compression and MAC around bytes whose meaning is not known here. For wire.c, and for
 * tests that must put bad bytes behind a good MAC.
 */
#ifndef PROTO_WIRE_ENVELOPE_H
#define PROTO_WIRE_ENVELOPE_H

#include "proto/wire/wire.h"

#define EF_WIRE_MAC_BYTES 16
#define EF_WIRE_SIGNED_BYTES (EF_WIRE_HEADER_BYTES - EF_WIRE_MAC_BYTES)
#define EF_WIRE_FLAG_ZSTD 1u

/* The key for sending. */
const uint8_t *ef_wire_keys_first(const struct ef_wire_keys *keys, uint32_t *ret_id);
/* NULL when the ring does not have it. */
const uint8_t *ef_wire_keys_find(const struct ef_wire_keys *keys, uint32_t id);

/* What compression keeps between calls; one for each ring of keys. Any thread. */
struct ef_wire_compressor;
struct ef_wire_compressor *ef_wire_compressor_open(void); /* NULL: out of memory */
void ef_wire_compressor_free(struct ef_wire_compressor *compressor);
struct ef_wire_compressor *ef_wire_keys_compressor(const struct ef_wire_keys *keys);

/* MAC over the signed part of the header and the payload as sent. */
void ef_wire_mac(const uint8_t key[EF_WIRE_KEY_BYTES], const uint8_t *signed_part,
                 const uint8_t *payload, size_t payload_bytes, uint8_t ret_mac[EF_WIRE_MAC_BYTES]);

/*
 * Compresses `raw` when that makes it smaller, writes header, payload and MAC to `out` (cleared
 * first). Sets flags, key_id and raw_bytes of the header. EF_ELIMIT, EF_ENOMEM.
 */
EF_MUST_USE ef_rc ef_wire_seal(const struct ef_wire_keys *keys, struct ef_wire_header *header,
                               const uint8_t *raw, size_t raw_bytes, struct ef_buf *out,
                               struct ef_err *err);

/*
 * Signs a message of our own again, with the key that is used for sending now: a spooled batch must
 * outlive the key it was made with. EF_ECORRUPT when it is not a message.
 */
EF_MUST_USE ef_rc ef_wire_sign_again(const struct ef_wire_keys *keys, uint8_t *data, size_t len,
                                     struct ef_err *err);

/* What ef_wire_unseal needs from one call to the next. */
struct ef_wire_unsealer;
struct ef_wire_unsealer *ef_wire_unsealer_open(void); /* NULL: out of memory */
void ef_wire_unsealer_free(struct ef_wire_unsealer *unsealer);
/*
 * Checks sizes, then the MAC, then decompresses. *ret_raw borrows the input or the unsealer's
 * memory until the next call.
 */
EF_MUST_USE ef_rc ef_wire_unseal(struct ef_wire_unsealer *unsealer, const struct ef_wire_keys *keys,
                                 const uint8_t *data, size_t len, struct ef_wire_header *ret_header,
                                 const uint8_t **ret_raw, size_t *ret_raw_bytes,
                                 struct ef_err *err);

#endif
