/*
 * Decides what an inspector's target list says and which runtime answers. The list comes from
 * outside: anybody may have bound the port. Runs on the caller's thread.
 */
#include "sampler/v8/inspector.h"

#include <stdlib.h>
#include <string.h>

#include "proto/http/http_client.h"

#define LIST_BYTES_MAX                                                                             \
    ((size_t)4 << 20) /* workerd: about 400 bytes a Worker, so 10,000 of them                      \
                       */

ef_rc
ef_inspector_check_address(const char *address, uint16_t *ret_port, struct ef_err *err)
{
    static const char host_chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                     "0123456789.-_";
    const char *colon = strrchr(address, ':');
    size_t host_len = colon != NULL ? (size_t)(colon - address) : 0;
    char *end = NULL;
    long port =
        colon != NULL && colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : 0;
    bool host_ok = host_len > 0 && host_len < 256;

    if (host_ok && address[0] == '[')
        host_ok = address[host_len - 1] == ']' &&
                  strspn(address + 1, "0123456789abcdefABCDEF:.") == host_len - 2;
    else if (host_ok)
        host_ok = strspn(address, host_chars) == host_len;
    if (!host_ok || port < 1 || port > 65535 || *end != '\0')
        return ef_err_set(err, EF_EINVAL, "inspector address '%.100s' is not 'host:port'", address);
    if (ret_port != NULL)
        *ret_port = (uint16_t)port;
    return EF_OK;
}

bool
ef_inspector_is_local(const char *address)
{
    const char *colon = strrchr(address, ':');
    char host[256];

    if (colon == NULL || (size_t)(colon - address) >= sizeof(host))
        return false;
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    return ef_http_host_is_loopback(host);
}

/* GET http://address/path as a JSON value of the wanted kind. */
static ef_rc
get_json(const char *address, const char *path, uint64_t deadline_ms, json_type type,
         json_t **ret_value, struct ef_err *err)
{
    char url[320];
    struct ef_http_request request = {.url = url,
                                      .connect_timeout_ms = deadline_ms,
                                      .timeout_ms = deadline_ms,
                                      .response_bytes_max = LIST_BYTES_MAX};
    struct ef_http_response response;
    json_t *value;
    int status;
    ef_rc rc;

    snprintf(url, sizeof(url), "http://%s%s", address, path);
    rc = ef_http_do(&request, &response, err);
    if (rc != EF_OK)
        return rc;
    status = response.status;
    value = status == 200 ? json_loadb((const char *)response.body.data, response.body.len, 0, NULL)
                          : NULL;
    ef_http_response_fini(&response);
    if (value == NULL || json_typeof(value) != type) {
        json_decref(value);
        return ef_err_set(err, EF_ECORRUPT, "GET %s: no inspector answers there (status %d)", url,
                          status);
    }
    *ret_value = value;
    return EF_OK;
}

/* /json/version: {"Browser": "workerd"} or "node.js/v20.20.2". */
static ef_rc
check_runtime(const char *address, const char *runtime, uint64_t deadline_ms, struct ef_err *err)
{
    char browser[64];
    json_t *version = NULL;
    bool same;
    ef_rc rc = get_json(address, "/json/version", deadline_ms, JSON_OBJECT, &version, err);

    if (rc != EF_OK)
        return rc;
    ef_json_tree_str(version, "Browser", browser, sizeof(browser));
    json_decref(version);
    same = strcmp(runtime, "workerd") == 0 ? strcmp(browser, "workerd") == 0
                                           : strncmp(browser, "node.js", 7) == 0;
    if (same)
        return EF_OK;
    for (char *at = browser; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20)
            *at = '?';
    return ef_err_set(err, EF_EUNSUP, "not %s but '%s' answers there", runtime, browser);
}

/* False for entries that no session could name: no id, or one that does not fit. */
static bool
read_entry(const json_t *from, struct ef_listed *entry)
{
    const char *id = json_string_value(json_object_get(from, "id"));

    if (id == NULL || id[0] == '\0' || strlen(id) >= sizeof(entry->id))
        return false;
    ef_json_tree_str(from, "id", entry->id, sizeof(entry->id));
    ef_json_tree_str(from, "title", entry->title, sizeof(entry->title));
    ef_json_tree_str(from, "url", entry->url, sizeof(entry->url));
    return true;
}

ef_rc
ef_inspector_list(const char *address, const char *runtime, uint64_t deadline_ms,
                  struct ef_listed *entries, size_t entries_max, size_t *ret_count,
                  struct ef_err *err)
{
    json_t *list = NULL;
    const json_t *item;
    size_t count = 0, index;
    ef_rc rc = ef_inspector_check_address(address, NULL, err);

    if (rc == EF_OK)
        rc = check_runtime(address, runtime, deadline_ms, err);
    if (rc == EF_OK)
        rc = get_json(address, "/json", deadline_ms, JSON_ARRAY, &list, err);
    if (rc != EF_OK)
        return rc;
    json_array_foreach(list, index, item)
    {
        if (count == entries_max)
            break;
        if (read_entry(item, &entries[count]))
            count++;
    }
    json_decref(list);
    *ret_count = count;
    return EF_OK;
}
