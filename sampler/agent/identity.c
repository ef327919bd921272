/*
 * Decides the names under which an isolate's samples are stored. Must not know of sessions or
 * schedules.
 */
#include "sampler/agent/identity.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/base/map.h"

/* A pattern of many wildcards could try for ever; real ones need a few hundred steps. */
#define STEPS_MAX 100000

struct matcher {
    struct ef_identity identity;
    unsigned steps;
};

static char *
place_of(struct ef_identity *identity, const char *at, size_t *ret_len)
{
    const struct {
        const char *word;
        char *place;
    } places[] = {{"{account}", identity->account},
                  {"{worker}", identity->worker},
                  {"{version}", identity->version},
                  {"{region}", identity->region}};

    for (size_t i = 0; i < EF_COUNT_OF(places); i++) {
        *ret_len = strlen(places[i].word);
        if (strncmp(at, places[i].word, *ret_len) == 0)
            return places[i].place;
    }
    return NULL;
}

/* Recursion as deep as the pattern has wildcards: its length is bounded by the config. */
static bool
match_from(struct matcher *matcher, const char *pattern, const char *text)
{
    char *place;
    size_t word_len;

    while (*pattern != '\0' && *pattern != '*' && *pattern != '{') {
        if (*pattern++ != *text++)
            return false;
    }
    if (*pattern == '\0')
        return *text == '\0';
    if (*pattern == '*') {
        for (;; text++) {
            if (matcher->steps++ > STEPS_MAX)
                return false;
            if (match_from(matcher, pattern + 1, text))
                return true;
            if (*text == '\0')
                return false;
        }
    }
    place = place_of(&matcher->identity, pattern, &word_len);
    if (place == NULL)
        return false;
    for (size_t len = 1; len < EF_AGENT_NAME_BYTES && text[len - 1] != '\0'; len++) {
        if (matcher->steps++ > STEPS_MAX)
            return false;
        if (match_from(matcher, pattern + word_len, text + len)) {
            memcpy(place, text, len);
            place[len] = '\0';
            return true;
        }
    }
    return false;
}

bool
ef_pattern_match(const char *pattern, const char *text, struct ef_identity *identity)
{
    struct matcher matcher = {.steps = 0};

    if (identity != NULL)
        matcher.identity = *identity;
    if (!match_from(&matcher, pattern, text))
        return false;
    if (identity != NULL)
        *identity = matcher.identity;
    return true;
}

ef_rc
ef_pattern_check(const char *pattern, struct ef_err *err)
{
    struct ef_identity none;
    size_t len;

    for (const char *at = strchr(pattern, '{'); at != NULL; at = strchr(at + 1, '{')) {
        if (place_of(&none, at, &len) == NULL)
            return ef_err_set(err, EF_EINVAL,
                              "'%.32s' begins none of {account}, {worker}, {version}, {region}",
                              at);
    }
    return EF_OK;
}

/* workerd's ids are service names; Node's are random, its title is the script. */
static const char *
service_of(const char *runtime, const struct ef_listed *listed)
{
    return strcmp(runtime, "node") == 0 ? listed->title : listed->id;
}

bool
ef_rule_matches(const struct ef_rule *rule, const char *runtime, const struct ef_listed *listed)
{
    if (rule->runtime[0] != '\0' && strcmp(rule->runtime, runtime) != 0)
        return false;
    return rule->service[0] == '\0' ||
           ef_pattern_match(rule->service, service_of(runtime, listed), NULL);
}

static void
fill(char *place, const char *text)
{
    if (place[0] == '\0')
        snprintf(place, EF_AGENT_NAME_BYTES, "%.128s", text);
}

static void
fill_from_mappings(const struct ef_config *config, const char *service, struct ef_identity *ret)
{
    for (size_t i = 0; i < config->mapping_count; i++) {
        const struct ef_mapping *mapping = &config->mappings[i];
        struct ef_identity said = {.account = ""};
        if (!ef_pattern_match(mapping->service, service, &said))
            continue;
        fill(ret->account, mapping->account);
        fill(ret->worker, mapping->worker);
        fill(ret->version, mapping->version);
        fill(ret->region, mapping->region);
        fill(ret->account, said.account);
        fill(ret->worker, said.worker);
        fill(ret->version, said.version);
        fill(ret->region, said.region);
        return;
    }
}

void
ef_identity_find(const struct ef_config *config, const struct ef_rule *rule, const char *runtime,
                 const struct ef_listed *listed, struct ef_identity *ret)
{
    const char *service = service_of(runtime, listed);
    struct ef_identity said = {.account = ""};

    memset(ret, 0, sizeof(*ret));
    fill(ret->account, rule->account);
    fill(ret->worker, rule->worker);
    fill(ret->version, rule->version);
    fill(ret->region, rule->region);
    if (rule->service[0] != '\0' && ef_pattern_match(rule->service, service, &said)) {
        fill(ret->account, said.account);
        fill(ret->worker, said.worker);
        fill(ret->version, said.version);
        fill(ret->region, said.region);
    }
    fill_from_mappings(config, service, ret);
    fill(ret->account, "default");
    fill(ret->worker, service[0] != '\0' ? service : runtime);
    fill(ret->region, config->region);
}

struct known_version {
    uint64_t key; /* of account, worker, version */
    char hash[65];
};

struct ef_registry {
    pthread_mutex_t lock; /* guards all below; leaf: nothing is called with it held */
    struct known_version *names;
    size_t count, count_max;
};

ef_rc
ef_registry_open(size_t names_max, struct ef_registry **ret, struct ef_err *err)
{
    struct ef_registry *registry = calloc(1, sizeof(*registry));

    if (registry == NULL ||
        (registry->names = calloc(names_max, sizeof(*registry->names))) == NULL) {
        free(registry);
        return ef_err_set(err, EF_ENOMEM, "version registry: out of memory");
    }
    registry->count_max = names_max;
    pthread_mutex_init(&registry->lock, NULL);
    *ret = registry;
    return EF_OK;
}

void
ef_registry_free(struct ef_registry *registry)
{
    if (registry == NULL)
        return;
    pthread_mutex_destroy(&registry->lock);
    free(registry->names);
    free(registry);
}

static uint64_t
name_key(const struct ef_identity *identity)
{
    char text[3 * EF_AGENT_NAME_BYTES + 3];
    int len = snprintf(text, sizeof(text), "%s\n%s\n%s", identity->account, identity->worker,
                       identity->version);

    return ef_hash(text, (size_t)len);
}

/* The hash that the name stands for; the first one seen when it is new. Copies. */
static void
known_hash(struct ef_registry *registry, uint64_t key, const char *script_hash, char ret[65])
{
    struct known_version *found = NULL;

    snprintf(ret, 65, "%s", script_hash);
    pthread_mutex_lock(&registry->lock);
    for (size_t i = 0; i < registry->count && found == NULL; i++) {
        if (registry->names[i].key == key)
            found = &registry->names[i];
    }
    if (found != NULL) {
        memcpy(ret, found->hash, sizeof(found->hash));
    } else if (registry->count < registry->count_max) {
        found = &registry->names[registry->count++];
        found->key = key;
        memcpy(found->hash, ret, sizeof(found->hash));
    }
    pthread_mutex_unlock(&registry->lock);
}

bool
ef_registry_version(struct ef_registry *registry, const struct ef_identity *identity,
                    const char *expected, const char *script_hash,
                    char ret_version[EF_AGENT_NAME_BYTES])
{
    char hash[65];

    if (identity->version[0] == '\0') {
        snprintf(ret_version, EF_AGENT_NAME_BYTES, "%.12s",
                 script_hash[0] != '\0' ? script_hash : "unknown");
        return false;
    }
    snprintf(ret_version, EF_AGENT_NAME_BYTES, "%s", identity->version);
    if (script_hash[0] == '\0')
        return false;
    if (expected[0] != '\0')
        snprintf(hash, sizeof(hash), "%.64s", expected);
    else
        known_hash(registry, name_key(identity), script_hash, hash);
    if (strcasecmp(hash, script_hash) == 0)
        return false;
    snprintf(ret_version, EF_AGENT_NAME_BYTES, "%.119s+%.8s", identity->version, script_hash);
    return true;
}
