/*
 * Decides what a key file looks like and which key is used. Must not know what is signed. Any
 * thread: a ring does not change after it was opened.
 */
#include "proto/wire/envelope.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#define LINE_BYTES_MAX 256u /* an id, 64 digits, blanks */

struct key {
    uint32_t id;
    uint8_t bytes[EF_WIRE_KEY_BYTES];
};

struct ef_wire_keys {
    struct ef_wire_compressor *compressor;
    size_t count;
    struct key key[EF_WIRE_KEYS_MAX];
};

static const char *
skip_blanks(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Parses "<id> <64 hex digits>". The text of the line is secret and never part of a message. */
static bool
parse_line(const char *at, struct key *ret)
{
    char *end;
    unsigned long id;
    size_t bytes;

    if (*at < '0' || *at > '9')
        return false;
    errno = 0;
    id = strtoul(at, &end, 10);
    if (errno != 0 || id == 0 || id > UINT32_MAX || (*end != ' ' && *end != '\t'))
        return false;
    at = skip_blanks(end);
    if (strspn(at, "0123456789abcdefABCDEF") != (size_t)EF_WIRE_KEY_BYTES * 2)
        return false;
    if (sodium_hex2bin(ret->bytes, sizeof(ret->bytes), at, (size_t)EF_WIRE_KEY_BYTES * 2, NULL,
                       &bytes, NULL) != 0 ||
        bytes != EF_WIRE_KEY_BYTES)
        return false;
    ret->id = (uint32_t)id;
    at = skip_blanks(at + (size_t)EF_WIRE_KEY_BYTES * 2);
    return *at == 0 || *at == '#';
}

static ef_rc
add_line(struct ef_wire_keys *keys, const char *line, struct ef_err *err)
{
    struct key key = {0};
    ef_rc rc = EF_OK;

    line = skip_blanks(line);
    if (*line == 0 || *line == '#')
        return EF_OK;
    if (!parse_line(line, &key))
        rc = ef_err_set(err, EF_EINVAL, "not '<id> <64 hex digits>' with an id of 1 to 4294967295");
    else if (ef_wire_keys_find(keys, key.id) != NULL)
        rc = ef_err_set(err, EF_EINVAL, "key %u is there twice", key.id);
    else if (keys->count == EF_WIRE_KEYS_MAX)
        rc = ef_err_set(err, EF_ELIMIT, "more than %d keys", EF_WIRE_KEYS_MAX);
    else
        keys->key[keys->count++] = key;
    sodium_memzero(&key, sizeof(key));
    return rc;
}

static ef_rc
read_file(struct ef_wire_keys *keys, const char *path, struct ef_err *err)
{
    char line[LINE_BYTES_MAX];
    unsigned number = 0;
    ef_rc rc = EF_OK;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return ef_err_errno(err, "cannot open key file '%s'", path);
    while (rc == EF_OK && fgets(line, sizeof(line), file) != NULL) {
        number++;
        if (strlen(line) == sizeof(line) - 1)
            rc = ef_err_set(err, EF_EINVAL, "longer than %u bytes", LINE_BYTES_MAX - 2);
        else
            rc = add_line(keys, line, err);
        if (rc != EF_OK)
            ef_err_prefix(err, "key file '%s', line %u", path, number);
    }
    if (rc == EF_OK && ferror(file))
        rc = ef_err_errno(err, "cannot read key file '%s'", path);
    else if (rc == EF_OK && keys->count == 0)
        rc = ef_err_set(err, EF_EINVAL, "key file '%s' holds no key", path);
    sodium_memzero(line, sizeof(line));
    fclose(file);
    return rc;
}

ef_rc
ef_wire_keys_open(const char *path, struct ef_wire_keys **ret_keys, struct ef_err *err)
{
    struct ef_wire_keys *keys;
    ef_rc rc = EF_OK;

    if (sodium_init() < 0) /* picks the fast BLAKE2b of this processor; may be called again */
        return ef_err_set(err, EF_EIO, "libsodium cannot start");
    keys = calloc(1, sizeof(*keys));
    if (keys == NULL || (keys->compressor = ef_wire_compressor_open()) == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "no memory for keys");
    else if (path == NULL || path[0] == 0)
        keys->count = 1; /* id 0, all zero */
    else
        rc = read_file(keys, path, err);
    if (rc != EF_OK) {
        ef_wire_keys_free(keys);
        return rc;
    }
    *ret_keys = keys;
    return EF_OK;
}

void
ef_wire_keys_free(struct ef_wire_keys *keys)
{
    if (keys == NULL)
        return;
    ef_wire_compressor_free(keys->compressor);
    sodium_memzero(keys, sizeof(*keys));
    free(keys);
}

bool
ef_wire_keys_authenticate(const struct ef_wire_keys *keys)
{
    return keys->key[0].id != 0;
}

const uint8_t *
ef_wire_keys_first(const struct ef_wire_keys *keys, uint32_t *ret_id)
{
    *ret_id = keys->key[0].id;
    return keys->key[0].bytes;
}

const uint8_t *
ef_wire_keys_find(const struct ef_wire_keys *keys, uint32_t id)
{
    for (size_t i = 0; i < keys->count; i++) {
        if (keys->key[i].id == id)
            return keys->key[i].bytes;
    }
    return NULL;
}

struct ef_wire_compressor *
ef_wire_keys_compressor(const struct ef_wire_keys *keys)
{
    return keys->compressor;
}
