/*
 * Decides what a configuration file may say and how its texts become values. libcyaml checks the
 * form (keys, nesting) and tells lines; all values come as texts and are checked here, so that a
 * wrong one is named by its key. Knows nothing of targets that really exist. Main thread.
 */
#include "sampler/agent/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cyaml/cyaml.h>

#include "proto/base/option.h"
#include "proto/base/time.h"
#include "proto/base/utf8.h"
#include "sampler/agent/identity.h"

#define CONFIG_BYTES_MAX (1u << 20)
#define ENTRIES_MAX 1024
#define TEXT_MAX 2048

/* Texts as they stand in the file; NULL = absent. */
struct raw_collector {
    char *ingest, *sync, *key_file;
};
struct raw_budget {
    char *cpu_ratio, *pause_ms_max, *pause_interval;
};
struct raw_spool {
    char *path, *bytes_max;
};
struct raw_rule {
    char *runtime, *inspector, *pid, *sigusr1, *service, *account, *worker, *version, *region;
    char *cpu, *heap, *heap_interval, *interval, *rotation, *devtools, *evaluate, *sha256,
        *max_pause_ms;
};
struct raw_config {
    struct raw_collector *collector;
    char *region, *host;
    struct raw_budget *budget;
    struct raw_spool *spool;
    struct raw_rule *defaults;
    struct raw_rule *targets;
    uint32_t target_count;
    struct raw_rule *scans;
    uint32_t scan_count;
    struct raw_rule *mappings;
    uint32_t mapping_count;
};

#define TEXT(holder, member)                                                                       \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, holder, member, 0,   \
                           TEXT_MAX)
#define SAMPLING_TEXTS                                                                             \
    TEXT(struct raw_rule, cpu), TEXT(struct raw_rule, heap), TEXT(struct raw_rule, heap_interval), \
        TEXT(struct raw_rule, interval), TEXT(struct raw_rule, rotation),                          \
        TEXT(struct raw_rule, devtools), TEXT(struct raw_rule, evaluate),                          \
        TEXT(struct raw_rule, sha256), TEXT(struct raw_rule, max_pause_ms)
#define NAME_TEXTS                                                                                 \
    TEXT(struct raw_rule, account), TEXT(struct raw_rule, worker), TEXT(struct raw_rule, version), \
        TEXT(struct raw_rule, region)

static const cyaml_schema_field_t collector_fields[] = {
    TEXT(struct raw_collector, ingest), TEXT(struct raw_collector, sync),
    TEXT(struct raw_collector, key_file), CYAML_FIELD_END};
static const cyaml_schema_field_t budget_fields[] = {
    TEXT(struct raw_budget, cpu_ratio), TEXT(struct raw_budget, pause_ms_max),
    TEXT(struct raw_budget, pause_interval), CYAML_FIELD_END};
static const cyaml_schema_field_t spool_fields[] = {
    TEXT(struct raw_spool, path), TEXT(struct raw_spool, bytes_max), CYAML_FIELD_END};
static const cyaml_schema_field_t defaults_fields[] = {SAMPLING_TEXTS, CYAML_FIELD_END};
static const cyaml_schema_field_t target_fields[] = {TEXT(struct raw_rule, runtime),
                                                     TEXT(struct raw_rule, inspector),
                                                     TEXT(struct raw_rule, pid),
                                                     TEXT(struct raw_rule, sigusr1),
                                                     TEXT(struct raw_rule, service),
                                                     NAME_TEXTS,
                                                     SAMPLING_TEXTS,
                                                     CYAML_FIELD_END};
static const cyaml_schema_field_t scan_fields[] = {TEXT(struct raw_rule, runtime),
                                                   TEXT(struct raw_rule, inspector),
                                                   TEXT(struct raw_rule, service),
                                                   NAME_TEXTS,
                                                   SAMPLING_TEXTS,
                                                   CYAML_FIELD_END};
static const cyaml_schema_field_t mapping_fields[] = {TEXT(struct raw_rule, service), NAME_TEXTS,
                                                      CYAML_FIELD_END};

static const cyaml_schema_value_t target_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_rule, target_fields)};
static const cyaml_schema_value_t scan_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_rule, scan_fields)};
static const cyaml_schema_value_t mapping_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_rule, mapping_fields)};

#define PART(member, fields)                                                                       \
    CYAML_FIELD_MAPPING_PTR(#member, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_config,  \
                            member, fields)
#define LIST(list, counter, entry_value)                                                           \
    {                                                                                              \
        .key = #list, .data_offset = offsetof(struct raw_config, list),                            \
        .count_offset = offsetof(struct raw_config, counter), .count_size = sizeof(uint32_t),      \
        .value = {CYAML_VALUE_SEQUENCE(CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct raw_rule,  \
                                       &entry_value, 0, ENTRIES_MAX)},                             \
    }

static const cyaml_schema_field_t config_fields[] = {PART(collector, collector_fields),
                                                     TEXT(struct raw_config, region),
                                                     TEXT(struct raw_config, host),
                                                     PART(budget, budget_fields),
                                                     PART(spool, spool_fields),
                                                     PART(defaults, defaults_fields),
                                                     LIST(targets, target_count, target_value),
                                                     LIST(scans, scan_count, scan_value),
                                                     LIST(mappings, mapping_count, mapping_value),
                                                     CYAML_FIELD_END};
static const cyaml_schema_value_t config_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_config, config_fields)};

/* The file at hand, for messages. */
struct source {
    const char *name;
    const char *text;
    size_t len;
};

/* libcyaml reports an error as a log line, then a backtrace whose first line has the place. */
struct complaint {
    char text[200];
    char field[64]; /* innermost mapping field of the backtrace */
    unsigned line;
};

static void __attribute__((format(printf, 3, 0)))
keep_complaint(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    struct complaint *complaint = ctx;
    char line[300];
    const char *at;

    if (level < CYAML_LOG_ERROR)
        return;
    vsnprintf(line, sizeof(line), fmt, args);
    line[strcspn(line, "\n")] = '\0';
    at = strstr(line, "(line: ");
    if (at != NULL && complaint->line == 0)
        complaint->line = (unsigned)strtoul(at + strlen("(line: "), NULL, 10);
    at = strstr(line, "in mapping field '");
    if (at != NULL && complaint->field[0] == '\0')
        snprintf(complaint->field, sizeof(complaint->field), "%.*s",
                 (int)strcspn(at + strlen("in mapping field '"), "'"),
                 at + strlen("in mapping field '"));
    at = strncmp(line, "Load: ", 6) == 0 ? line + 6 : line;
    if (complaint->text[0] == '\0' && at[0] != ' ' && strcmp(at, "Backtrace:") != 0)
        snprintf(complaint->text, sizeof(complaint->text), "%.199s", at);
}

static unsigned
line_of(const struct source *source, const char *at)
{
    unsigned line = 1;

    for (const char *c = source->text; c < at; c++)
        line += *c == '\n';
    return line;
}

/* libcyaml keeps no place of a value; where key and value stand together only once, that is it. */
static unsigned
find_line(const struct source *source, const char *key, const char *value)
{
    const char *end = source->text + source->len, *found = NULL;
    size_t key_len = strlen(key), value_len = value != NULL ? strlen(value) : 0;

    for (const char *at = source->text; at + key_len < end; at++) {
        const char *after = at + key_len;
        if (memcmp(at, key, key_len) != 0 ||
            (at > source->text && (isalnum((unsigned char)at[-1]) || at[-1] == '_')))
            continue;
        while (after < end && strchr("\"': \t", *after) != NULL && *after != '\0')
            after++;
        if (value_len > (size_t)(end - after) ||
            (value_len > 0 && memcmp(after, value, value_len) != 0))
            continue;
        if (found != NULL)
            return 0;
        found = at;
    }
    return found != NULL ? line_of(source, found) : 0;
}

static ef_rc EF_PRINTF(6, 7) refuse(const struct source *source, const char *where, const char *key,
                                    const char *value, struct ef_err *err, const char *fmt, ...)
{
    char reason[300];
    unsigned line = value != NULL && value[0] != '\0' ? find_line(source, key, value) : 0;
    const char *dot = where[0] != '\0' ? "." : "";
    va_list args;

    va_start(args, fmt);
    vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    if (line > 0)
        return ef_err_set(err, EF_EINVAL, "%s, line %u, key '%s%s%s': %s", source->name, line,
                          where, dot, key, reason);
    return ef_err_set(err, EF_EINVAL, "%s, key '%s%s%s': %s", source->name, where, dot, key,
                      reason);
}

/* --- one value each; a NULL text leaves the default ------------------------------------------ */

struct reader {
    const struct source *source;
    const char *where;
    struct ef_err *err;
    ef_rc rc; /* the first error stays */
};

static bool
go_on(const struct reader *reader, const char *text)
{
    return reader->rc == EF_OK && text != NULL;
}

#define REFUSE(reader, key, text, ...)                                                             \
    ((reader)->rc =                                                                                \
         refuse((reader)->source, (reader)->where, key, text, (reader)->err, __VA_ARGS__))

static void
read_text(struct reader *reader, const char *key, const char *text, char *buf, size_t len)
{
    if (!go_on(reader, text))
        return;
    if (strlen(text) >= len)
        REFUSE(reader, key, text, "longer than %zu bytes", len - 1);
    else
        memcpy(buf, text, strlen(text) + 1);
}

static void
read_pattern(struct reader *reader, const char *text, char *buf, size_t len)
{
    struct ef_err why = {0};

    read_text(reader, "service", text, buf, len);
    if (go_on(reader, text) && ef_pattern_check(text, &why) != EF_OK)
        REFUSE(reader, "service", text, "%.250s", why.msg);
}

static void
read_name(struct reader *reader, const char *key, const char *text, char *buf)
{
    if (!go_on(reader, text))
        return;
    if (!ef_name_valid(text, strlen(text), EF_AGENT_NAME_BYTES - 1))
        REFUSE(reader, key, text, "a name has 1 to %d bytes of UTF-8 without control characters",
               EF_AGENT_NAME_BYTES - 1);
    else
        memcpy(buf, text, strlen(text) + 1);
}

static void
read_bool(struct reader *reader, const char *key, const char *text, bool *ret)
{
    if (!go_on(reader, text))
        return;
    if (strcmp(text, "true") == 0 || strcmp(text, "yes") == 0 || strcmp(text, "on") == 0)
        *ret = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "no") == 0 || strcmp(text, "off") == 0)
        *ret = false;
    else
        REFUSE(reader, key, text, "'%.64s' is neither true nor false", text);
}

static void
read_number(struct reader *reader, const char *key, const char *text, double min, double max,
            double *ret)
{
    char *end;
    double number;

    if (!go_on(reader, text))
        return;
    number = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(number))
        REFUSE(reader, key, text, "'%.64s' is not a number", text);
    else if (number < min || number > max)
        REFUSE(reader, key, text, "%.64s is outside %.15g to %.15g", text, min, max);
    else
        *ret = number;
}

static void
read_size(struct reader *reader, const char *key, const char *text, uint64_t min, uint64_t max,
          uint64_t *ret)
{
    uint64_t bytes;
    struct ef_err why = {0};

    if (!go_on(reader, text))
        return;
    if (ef_size_parse(text, &bytes, &why) != EF_OK)
        REFUSE(reader, key, text, "%.250s", why.msg);
    else if (bytes < min || bytes > max)
        REFUSE(reader, key, text, "%.64s is outside %llu to %llu bytes", text,
               (unsigned long long)min, (unsigned long long)max);
    else
        *ret = bytes;
}

static void
read_span(struct reader *reader, const char *key, const char *text, int64_t min_ns, int64_t max_ns,
          int64_t *ret)
{
    ef_span_ns span;
    struct ef_err why = {0};
    char min[32], max[32];

    if (!go_on(reader, text))
        return;
    if (ef_span_parse(text, &span, &why) != EF_OK)
        REFUSE(reader, key, text, "%.250s", why.msg);
    else if (span.ns < min_ns || span.ns > max_ns)
        REFUSE(reader, key, text, "%.64s is outside %s to %s", text,
               ef_span_format((ef_span_ns){min_ns}, min, sizeof(min)),
               ef_span_format((ef_span_ns){max_ns}, max, sizeof(max)));
    else
        *ret = span.ns;
}

static void
read_auto_span(struct reader *reader, const char *key, const char *text, int64_t min_ns,
               int64_t max_ns, uint64_t *ret)
{
    int64_t span_ns = 0;

    if (!go_on(reader, text))
        return;
    if (strcmp(text, "auto") == 0) {
        *ret = 0;
        return;
    }
    read_span(reader, key, text, min_ns, max_ns, &span_ns);
    if (reader->rc == EF_OK)
        *ret = (uint64_t)span_ns;
}

static void
read_heap(struct reader *reader, const char *text, enum ef_heap_choice *ret)
{
    static const struct {
        const char *word;
        enum ef_heap_choice choice;
    } words[] = {{"off", EF_HEAP_CHOICE_OFF},     {"false", EF_HEAP_CHOICE_OFF},
                 {"alloc", EF_HEAP_CHOICE_ALLOC}, {"inuse", EF_HEAP_CHOICE_INUSE},
                 {"both", EF_HEAP_CHOICE_BOTH},   {"auto", EF_HEAP_CHOICE_AUTO}};

    if (!go_on(reader, text))
        return;
    for (size_t i = 0; i < EF_COUNT_OF(words); i++) {
        if (strcmp(words[i].word, text) == 0) {
            *ret = words[i].choice;
            return;
        }
    }
    REFUSE(reader, "heap", text, "'%.64s' is none of off, alloc, inuse, both", text);
}

static void
read_sha256(struct reader *reader, const char *text, char *buf)
{
    if (!go_on(reader, text))
        return;
    if (strlen(text) != 64 || strspn(text, "0123456789abcdefABCDEF") != 64) {
        REFUSE(reader, "sha256", text, "not 64 hexadecimal digits");
        return;
    }
    for (size_t i = 0; i <= 64; i++)
        buf[i] = (char)tolower((unsigned char)text[i]);
}

static void
read_pid(struct reader *reader, const char *text, int *ret)
{
    double number = 0;

    read_number(reader, "pid", text, 1, 4194304, &number); /* PID_MAX_LIMIT of Linux */
    if (text == NULL || reader->rc != EF_OK)
        return;
    if (number != floor(number))
        REFUSE(reader, "pid", text, "'%.64s' is not a whole number", text);
    else
        *ret = (int)number;
}

static void
read_url(struct reader *reader, const char *key, const char *text, char *buf, size_t len)
{
    if (!go_on(reader, text))
        return;
    if (strncmp(text, "tcp://", 6) != 0 && strncmp(text, "tls+tcp://", 10) != 0)
        REFUSE(reader, key, text, "'%.64s' is not an address like tcp://127.0.0.1:4681", text);
    else
        read_text(reader, key, text, buf, len);
}

/* "host:port" or "host:first-last" (scans); "[::1]:9229" as well. */
static void
read_inspector(struct reader *reader, const char *text, struct ef_rule *rule)
{
    const char *colon;
    char *end;
    unsigned long first, last;

    if (!go_on(reader, text))
        return;
    colon = strrchr(text, ':');
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof(rule->host) ||
        !isdigit((unsigned char)colon[1])) {
        REFUSE(reader, "inspector", text, "'%.64s' is not an address like 127.0.0.1:9229", text);
        return;
    }
    first = last = strtoul(colon + 1, &end, 10);
    if (*end == '-' && rule->scan && isdigit((unsigned char)end[1]))
        last = strtoul(end + 1, &end, 10);
    if (*end != '\0' || first == 0 || first > 65535 || last < first || last > 65535 ||
        last - first > 1023) {
        REFUSE(reader, "inspector", text,
               rule->scan ? "ports are 1 to 65535, a range has at most 1024"
                          : "'%.64s' does not end in one port from 1 to 65535",
               text);
        return;
    }
    snprintf(rule->host, sizeof(rule->host), "%.*s", (int)(colon - text), text);
    rule->port_first = (uint16_t)first;
    rule->port_last = (uint16_t)last;
}

/* --- parts ----------------------------------------------------------------------------------- */

static const struct ef_sampling sampling_default = {
    .cpu = true,
    .heap = EF_HEAP_CHOICE_AUTO,
    .heap_interval_bytes = 512 << 10, /* 0.4 % of CPU (v8-schedule §3); 16 KiB costs 11 % */
    .evaluate = true,
};

static void
read_sampling(struct reader *reader, const struct raw_rule *raw, struct ef_sampling *sampling)
{
    double pause_ms = 0;

    read_bool(reader, "cpu", raw->cpu, &sampling->cpu);
    read_heap(reader, raw->heap, &sampling->heap);
    /* 0 crashes V8; tiny intervals cost dearly (field fault: heap interval 0, negative, huge). */
    read_size(reader, "heap_interval", raw->heap_interval, 4096, 1 << 30,
              &sampling->heap_interval_bytes);
    read_auto_span(reader, "interval", raw->interval, 1 * EF_NS_PER_MS, EF_NS_PER_S,
                   &sampling->interval_ns);
    read_auto_span(reader, "rotation", raw->rotation, 1 * EF_NS_PER_S, 3600 * EF_NS_PER_S,
                   &sampling->rotation_ns);
    read_bool(reader, "devtools", raw->devtools, &sampling->devtools);
    read_bool(reader, "evaluate", raw->evaluate, &sampling->evaluate);
    read_sha256(reader, raw->sha256, sampling->sha256);
    read_number(reader, "max_pause_ms", raw->max_pause_ms, 1, 60000, &pause_ms);
    if (pause_ms > 0)
        sampling->pause_max_ns = (int64_t)(pause_ms * (double)EF_NS_PER_MS);
}

static void
read_runtime(struct reader *reader, const char *text, struct ef_rule *rule)
{
    if (!go_on(reader, text))
        return;
    if (strcmp(text, "workerd") != 0 && strcmp(text, "node") != 0)
        REFUSE(reader, "runtime", text, "'%.64s' is neither workerd nor node", text);
    else
        snprintf(rule->runtime, sizeof(rule->runtime), "%s", text);
}

static void
check_rule(struct reader *reader, const struct raw_rule *raw, const struct ef_rule *rule)
{
    if (reader->rc != EF_OK)
        return;
    if (!rule->scan && rule->runtime[0] == '\0')
        REFUSE(reader, "runtime", NULL, "is missing; write workerd or node");
    else if (rule->host[0] == '\0' && rule->scan)
        REFUSE(reader, "inspector", NULL, "is missing; write for example 127.0.0.1:9229-9239");
    else if (rule->host[0] == '\0' && (rule->pid == 0 || strcmp(rule->runtime, "node") != 0))
        REFUSE(reader, "inspector", NULL,
               "is missing; write for example 127.0.0.1:9229 (a node may be given by pid)");
    else if (rule->sigusr1 && (strcmp(rule->runtime, "node") != 0 || rule->pid == 0))
        REFUSE(reader, "sigusr1", raw->sigusr1, "needs runtime node and a pid");
}

static ef_rc
read_rule(const struct source *source, const char *list, size_t index, const struct raw_rule *raw,
          const struct ef_sampling *defaults, struct ef_rule *rule, struct ef_err *err)
{
    struct reader reader = {source, rule->where, err, EF_OK};

    snprintf(rule->where, sizeof(rule->where), "%s[%zu]", list, index);
    rule->scan = strcmp(list, "scans") == 0;
    rule->sampling = *defaults;
    read_runtime(&reader, raw->runtime, rule);
    read_inspector(&reader, raw->inspector, rule);
    read_pid(&reader, raw->pid, &rule->pid);
    read_bool(&reader, "sigusr1", raw->sigusr1, &rule->sigusr1);
    read_pattern(&reader, raw->service, rule->service, sizeof(rule->service));
    read_name(&reader, "account", raw->account, rule->account);
    read_name(&reader, "worker", raw->worker, rule->worker);
    read_name(&reader, "version", raw->version, rule->version);
    read_name(&reader, "region", raw->region, rule->region);
    read_sampling(&reader, raw, &rule->sampling);
    check_rule(&reader, raw, rule);
    return reader.rc;
}

static ef_rc
read_mapping(const struct source *source, size_t index, const struct raw_rule *raw,
             struct ef_mapping *mapping, struct ef_err *err)
{
    char where[32];
    struct reader reader = {source, where, err, EF_OK};

    snprintf(where, sizeof(where), "mappings[%zu]", index);
    if (raw->service == NULL || raw->service[0] == '\0')
        REFUSE(&reader, "service", NULL, "is missing; write for example {account}:{worker}");
    read_pattern(&reader, raw->service, mapping->service, sizeof(mapping->service));
    read_name(&reader, "account", raw->account, mapping->account);
    read_name(&reader, "worker", raw->worker, mapping->worker);
    read_name(&reader, "version", raw->version, mapping->version);
    read_name(&reader, "region", raw->region, mapping->region);
    return reader.rc;
}

static ef_rc
read_lists(const struct source *source, const struct raw_config *raw,
           const struct ef_sampling *defaults, struct ef_config *config, struct ef_err *err)
{
    size_t rules = (size_t)raw->target_count + raw->scan_count;
    ef_rc rc = EF_OK;

    config->rules = calloc(rules + 1, sizeof(*config->rules));
    config->mappings = calloc((size_t)raw->mapping_count + 1, sizeof(*config->mappings));
    if (config->rules == NULL || config->mappings == NULL)
        return ef_err_set(err, EF_ENOMEM, "%s: out of memory", source->name);
    for (size_t i = 0; i < raw->target_count && rc == EF_OK; i++)
        rc = read_rule(source, "targets", i, &raw->targets[i], defaults,
                       &config->rules[config->rule_count++], err);
    for (size_t i = 0; i < raw->scan_count && rc == EF_OK; i++)
        rc = read_rule(source, "scans", i, &raw->scans[i], defaults,
                       &config->rules[config->rule_count++], err);
    for (size_t i = 0; i < raw->mapping_count && rc == EF_OK; i++)
        rc = read_mapping(source, i, &raw->mappings[i], &config->mappings[config->mapping_count++],
                          err);
    return rc;
}

static void
read_collector(struct reader *reader, const struct raw_config *raw, struct ef_config *config)
{
    static const struct raw_collector none;
    const struct raw_collector *from = raw->collector != NULL ? raw->collector : &none;

    reader->where = "collector";
    read_url(reader, "ingest", from->ingest, config->ingest_url, sizeof(config->ingest_url));
    read_url(reader, "sync", from->sync, config->sync_url, sizeof(config->sync_url));
    read_text(reader, "key_file", from->key_file, config->key_file, sizeof(config->key_file));
}

static void
read_limits(struct reader *reader, const struct raw_config *raw, struct ef_config *config)
{
    static const struct raw_budget no_budget;
    static const struct raw_spool no_spool;
    const struct raw_budget *budget = raw->budget != NULL ? raw->budget : &no_budget;
    const struct raw_spool *spool = raw->spool != NULL ? raw->spool : &no_spool;
    double pause_ms = (double)config->pause_max_ns / (double)EF_NS_PER_MS;

    reader->where = "budget";
    read_number(reader, "cpu_ratio", budget->cpu_ratio, 0.0001, 1, &config->cpu_ratio);
    read_number(reader, "pause_ms_max", budget->pause_ms_max, 1, 60000, &pause_ms);
    read_span(reader, "pause_interval", budget->pause_interval, EF_NS_PER_S, 86400 * EF_NS_PER_S,
              &config->pause_interval_ns);
    config->pause_max_ns = (int64_t)(pause_ms * (double)EF_NS_PER_MS);
    reader->where = "spool";
    read_text(reader, "path", spool->path, config->spool_path, sizeof(config->spool_path));
    read_size(reader, "bytes_max", spool->bytes_max, 1 << 20, UINT64_C(1) << 40,
              &config->spool_bytes_max);
}

static void
set_defaults(struct ef_config *config)
{
    *config = (struct ef_config){
        .ingest_url = "tcp://127.0.0.1:4681",
        .sync_url = "tcp://127.0.0.1:4682",
        .cpu_ratio = 0.01,                  /* DESIGN §6 */
        .pause_max_ns = 100 * EF_NS_PER_MS, /* DESIGN §6 */
        .pause_interval_ns = 60 * EF_NS_PER_S,
        .spool_bytes_max = 64u << 20,
    };
    if (gethostname(config->host, sizeof(config->host) - 1) != 0 || config->host[0] == '\0')
        snprintf(config->host, sizeof(config->host), "unknown-host");
}

static ef_rc
read_config(const struct source *source, const struct raw_config *raw, struct ef_config *config,
            struct ef_err *err)
{
    static const struct raw_rule no_defaults;
    struct ef_sampling defaults = sampling_default;
    struct reader reader = {source, "", err, EF_OK};

    set_defaults(config);
    read_name(&reader, "region", raw->region, config->region);
    read_name(&reader, "host", raw->host, config->host);
    read_collector(&reader, raw, config);
    read_limits(&reader, raw, config);
    reader.where = "defaults";
    read_sampling(&reader, raw->defaults != NULL ? raw->defaults : &no_defaults, &defaults);
    if (reader.rc != EF_OK)
        return reader.rc;
    return read_lists(source, raw, &defaults, config, err);
}

/* What libcyaml said, as one line. For an unknown key it tells the line of the key before it. */
static ef_rc
refuse_form(const struct source *source, struct complaint *complaint, cyaml_err_t outcome,
            struct ef_err *err)
{
    static const char unknown[] = "Unexpected key: ";
    bool in_field = complaint->field[0] != '\0';

    if (strncmp(complaint->text, unknown, strlen(unknown)) == 0) {
        unsigned line = find_line(source, complaint->text + strlen(unknown), NULL);
        complaint->line = line > 0 ? line : complaint->line;
        return ef_err_set(err, EF_EINVAL, "%s, line %u: there is no key '%s' here", source->name,
                          complaint->line, complaint->text + strlen(unknown));
    }
    return ef_err_set(err, EF_EINVAL, "%s, line %u: %s%s%s%s", source->name, complaint->line,
                      in_field ? "key '" : "", complaint->field, in_field ? "': " : "",
                      complaint->text[0] != '\0' ? complaint->text : cyaml_strerror(outcome));
}

ef_rc
ef_config_parse(const char *name, const char *text, size_t len, struct ef_config **ret_config,
                struct ef_err *err)
{
    struct complaint complaint = {.line = 0};
    const cyaml_config_t settings = {
        .log_fn = keep_complaint,
        .log_ctx = &complaint,
        .log_level = CYAML_LOG_ERROR,
        .mem_fn = cyaml_mem,
        .flags = CYAML_CFG_NO_ALIAS, /* An alias can make a small file huge. */
    };
    struct source source = {name, text, len};
    struct raw_config *raw = NULL, empty = {0};
    struct ef_config *config = NULL;
    cyaml_err_t outcome;
    ef_rc rc;

    if (len > CONFIG_BYTES_MAX || memchr(text, '\0', len) != NULL)
        return ef_err_set(err, EF_EINVAL, "%s: not a text of at most 1 MiB", name);
    outcome =
        cyaml_load_data((const uint8_t *)text, len, &settings, &config_value, (void **)&raw, NULL);
    if (outcome != CYAML_OK) {
        rc = refuse_form(&source, &complaint, outcome, err);
        goto out;
    }
    config = calloc(1, sizeof(*config));
    if (config == NULL) {
        rc = ef_err_set(err, EF_ENOMEM, "%s: out of memory", name);
        goto out;
    }
    rc = read_config(&source, raw != NULL ? raw : &empty, config, err);
    if (rc != EF_OK)
        goto out;
    *ret_config = config;
    config = NULL; /* moved to the caller */
out:
    cyaml_free(&settings, &config_value, raw, 0);
    ef_config_free(config);
    return rc;
}

ef_rc
ef_config_load(const char *path, struct ef_config **ret_config, struct ef_err *err)
{
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    size_t len;
    ef_rc rc;

    if (file == NULL)
        return ef_err_errno(err, "configuration file '%s'", path);
    text = malloc(CONFIG_BYTES_MAX + 1);
    if (text == NULL) {
        rc = ef_err_set(err, EF_ENOMEM, "%s: out of memory", path);
        goto out;
    }
    errno = 0;
    len = fread(text, 1, CONFIG_BYTES_MAX + 1, file);
    rc = ferror(file) ? ef_err_errno(err, "configuration file '%s'", path)
                      : ef_config_parse(path, text, len, ret_config, err);
out:
    free(text);
    fclose(file);
    return rc;
}

void
ef_config_free(struct ef_config *config)
{
    if (config == NULL)
        return;
    free(config->rules);
    free(config->mappings);
    free(config);
}
