/*
 * The configuration file: what a good one gives, and that each bad one is refused with one line
 * that names file, line where known, and key. Also the names made from it (identity).
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/time.h"
#include "sampler/agent/config.h"
#include "sampler/agent/identity.h"

static struct ef_config *
good(const char *text)
{
    struct ef_config *config = NULL;
    struct ef_err err = {0};

    if (ef_config_parse("agent.yaml", text, strlen(text), &config, &err) != EF_OK)
        fail_msg("%s", err.msg);
    return config;
}

static void
bad(const char *text, const char *part, const char *other_part)
{
    struct ef_config *config = NULL;
    struct ef_err err = {0};

    assert_int_equal(ef_config_parse("agent.yaml", text, strlen(text), &config, &err), EF_EINVAL);
    assert_null(config);
    if (strncmp(err.msg, "agent.yaml", 10) != 0 || strstr(err.msg, part) == NULL ||
        strstr(err.msg, other_part) == NULL)
        fail_msg("'%s' does not name '%s' and '%s'", err.msg, part, other_part);
}

static const char full[] =
    "collector: {ingest: 'tcp://10.0.0.1:4681', sync: tcp://10.0.0.1:4682, key_file: /etc/key}\n"
    "region: fra\n"
    "host: h7\n"
    "budget: {cpu_ratio: 0.02, pause_ms_max: 50, pause_interval: 90s}\n"
    "spool: {path: ./var/spool, bytes_max: 32MiB}\n"
    "defaults: {heap_interval: 1MiB, evaluate: false}\n"
    "targets:\n"
    "  - {runtime: workerd, inspector: 127.0.0.1:9229, account: acct0, worker: shop, version: "
    "v41,\n"
    "     service: \"acct0:shop:v41\", pid: 4242, heap: alloc, rotation: 60s, interval: 50ms}\n"
    "  - {runtime: node, pid: 77, sigusr1: true, account: a, worker: api, version: v1,\n"
    "     evaluate: true, max_pause_ms: 20, devtools: yes, cpu: off}\n"
    "scans:\n"
    "  - {runtime: workerd, inspector: \"127.0.0.1:9229-9239\"}\n"
    "mappings:\n"
    "  - {service: \"{account}:{worker}:{version}\"}\n"
    "  - {service: \"internal-*\", account: ops}\n";

static void
full_configuration_is_read(void **state)
{
    struct ef_config *config = good(full);
    const struct ef_rule *shop = &config->rules[0], *api = &config->rules[1];

    (void)state;
    assert_string_equal(config->ingest_url, "tcp://10.0.0.1:4681");
    assert_string_equal(config->sync_url, "tcp://10.0.0.1:4682");
    assert_string_equal(config->key_file, "/etc/key");
    assert_string_equal(config->region, "fra");
    assert_string_equal(config->host, "h7");
    assert_true(config->cpu_ratio == 0.02);
    assert_int_equal(config->pause_max_ns, 50 * EF_NS_PER_MS);
    assert_int_equal(config->pause_interval_ns, 90 * EF_NS_PER_S);
    assert_string_equal(config->spool_path, "./var/spool");
    assert_int_equal(config->spool_bytes_max, 32 << 20);
    assert_int_equal(config->rule_count, 3);
    assert_int_equal(config->mapping_count, 2);
    assert_string_equal(shop->host, "127.0.0.1");
    assert_int_equal(shop->port_first, 9229);
    assert_int_equal(shop->port_last, 9229);
    assert_int_equal(shop->pid, 4242);
    assert_int_equal(shop->sampling.heap, EF_HEAP_CHOICE_ALLOC);
    assert_int_equal(shop->sampling.heap_interval_bytes, 1 << 20);
    assert_int_equal(shop->sampling.rotation_ns, 60 * EF_NS_PER_S);
    assert_int_equal(shop->sampling.interval_ns, 50 * EF_NS_PER_MS);
    assert_false(shop->sampling.evaluate);
    assert_true(api->sigusr1 && api->sampling.evaluate && api->sampling.devtools);
    assert_false(api->sampling.cpu);
    assert_int_equal(api->sampling.pause_max_ns, 20 * EF_NS_PER_MS);
    assert_true(config->rules[2].scan);
    assert_int_equal(config->rules[2].port_last, 9239);
    ef_config_free(config);
}

static void
json_is_yaml_too(void **state)
{
    struct ef_config *config = good("{\"targets\": [{\"runtime\": \"workerd\", \"inspector\": "
                                    "\"127.0.0.1:9229\", \"pid\": 12, \"cpu\": true}],\n"
                                    "\"budget\": {\"cpu_ratio\": 0.05, \"pause_ms_max\": 100}}");

    (void)state;
    assert_int_equal(config->rule_count, 1);
    assert_true(config->cpu_ratio == 0.05);
    ef_config_free(config);
}

static void
empty_configuration_has_defaults(void **state)
{
    struct ef_config *config = good("");
    char host[200] = "";

    (void)state;
    gethostname(host, sizeof(host));
    assert_string_equal(config->ingest_url, "tcp://127.0.0.1:4681");
    assert_string_equal(config->host, host);
    assert_true(config->cpu_ratio == 0.01);
    assert_int_equal(config->pause_max_ns, 100 * EF_NS_PER_MS);
    assert_int_equal(config->rule_count, 0);
    ef_config_free(config);
}

static void
unknown_keys_are_named_with_their_line(void **state)
{
    (void)state;
    bad("region: x\nbudgett: {}\n", "line 2", "budgett");
    bad("targets:\n  - {runtime: node, pid: 1, inspektor: x}\n", "line 2", "inspektor");
    bad("scans:\n  - {runtime: workerd, inspector: 'a:1', pid: 5}\n", "line 2", "pid");
}

static void
wrong_forms_are_refused(void **state)
{
    (void)state;
    bad("targets: 5\n", "line 1", "targets");
    bad("- a\n- b\n", "line", "MAPPING");
    bad("region: [1]\n", "line 1", "STRING");
    bad("region: a\nregion: b\n", "line", "region");
    bad("region: *nothing\n", "line", "lias");
    bad("budget: {cpu_ratio: 0.01\nregion: x\n", "line", "libyaml");
}

static void
wrong_values_are_named_by_key_and_line(void **state)
{
    (void)state;
    bad("budget: {cpu_ratio: much}\n", "line 1", "budget.cpu_ratio");
    bad("region: x\nbudget:\n  cpu_ratio: 1.5\n", "line 3", "outside");
    bad("budget: {cpu_ratio: nan}\n", "cpu_ratio", "not a number");
    bad("budget: {pause_ms_max: 0}\n", "pause_ms_max", "outside");
    bad("budget: {pause_interval: soon}\n", "pause_interval", "soon");
    bad("spool: {bytes_max: 12parsec}\n", "spool.bytes_max", "12parsec");
    bad("collector: {ingest: 127.0.0.1:4681}\n", "collector.ingest", "tcp://");
    bad("defaults: {heap: maybe}\n", "defaults.heap", "alloc");
    bad("defaults: {cpu: perhaps}\n", "defaults.cpu", "perhaps");
    bad("defaults: {sha256: abc}\n", "defaults.sha256", "64");
    bad("defaults: {interval: 2s}\n", "defaults.interval", "outside");
    bad("defaults: {rotation: -5s}\n", "defaults.rotation", "-5s");
}

/* Field fault: a heap interval of 0 crashes V8; negative and absurd values must not get there. */
static void
dangerous_heap_intervals_are_refused(void **state)
{
    (void)state;
    bad("defaults: {heap_interval: 0}\n", "heap_interval", "outside");
    bad("defaults: {heap_interval: -1}\n", "heap_interval", "-1");
    bad("defaults: {heap_interval: 999999999GiB}\n", "heap_interval", "GiB");
    bad("defaults: {heap_interval: 2GiB}\n", "heap_interval", "outside");
}

static void
incomplete_or_contradicting_targets_are_refused(void **state)
{
    (void)state;
    bad("targets: [{inspector: '127.0.0.1:9229'}]\n", "targets[0].runtime", "missing");
    bad("targets: [{runtime: deno, inspector: '127.0.0.1:9229'}]\n", "targets[0].runtime", "deno");
    bad("targets: [{runtime: workerd, pid: 5}]\n", "targets[0].inspector", "missing");
    bad("targets: [{runtime: node}]\n", "targets[0].inspector", "missing");
    bad("targets: [{runtime: node, inspector: '127.0.0.1:9229-9230'}]\n", "inspector", "one port");
    bad("targets: [{runtime: node, inspector: '127.0.0.1'}]\n", "inspector", "127.0.0.1:9229");
    bad("targets: [{runtime: node, inspector: 'h:70000'}]\n", "inspector", "65535");
    bad("targets: [{runtime: workerd, inspector: 'h:1', sigusr1: true}]\n", "sigusr1", "node");
    bad("targets: [{runtime: node, pid: 1.5}]\n", "pid", "whole");
    bad("targets: [{runtime: node, pid: 99999999}]\n", "pid", "outside");
    bad("scans: [{runtime: node}]\n", "scans[0].inspector", "missing");
    bad("scans: [{inspector: 'h:1-5000'}]\n", "scans[0].inspector", "1024");
    bad("mappings: [{account: a}]\n", "mappings[0].service", "missing");
    bad("mappings: [{service: '{acount}:*'}]\n", "mappings[0].service", "{account}");
    bad("targets: [{runtime: node, pid: 1, account: \"a\\tb\"}]\n", "account", "name");
}

static void
load_names_a_missing_file(void **state)
{
    struct ef_config *config = NULL;
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(ef_config_load("/nonexistent/agent.yaml", &config, &err), EF_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/agent.yaml"));
    assert_null(config);
}

static void
example_configuration_is_good(void **state)
{
    struct ef_config *config = NULL;
    struct ef_err err = {0};
    char path[1024];

    (void)state;
    snprintf(path, sizeof(path), "%s/ops/everflame-agent.yaml.example", getenv("EF_SOURCE_DIR"));
    if (ef_config_load(path, &config, &err) != EF_OK)
        fail_msg("%s", err.msg);
    assert_true(config->rule_count > 0);
    ef_config_free(config);
}

/* --- names ----------------------------------------------------------------------------------- */

static void
patterns_capture_names(void **state)
{
    struct ef_identity names = {.account = ""};

    (void)state;
    assert_true(ef_pattern_match("{account}:{worker}:{version}", "acct0:shop:v41", &names));
    assert_string_equal(names.account, "acct0");
    assert_string_equal(names.worker, "shop");
    assert_string_equal(names.version, "v41");
    assert_true(ef_pattern_match("{account}--*--{version}@{region}", "a--b--c--v7@fra", &names));
    assert_string_equal(names.version, "c--v7"); /* the shortest text for each, from the left */
    assert_string_equal(names.region, "fra");
    assert_true(ef_pattern_match("*", "", NULL));
    assert_true(ef_pattern_match("a*c", "abbbc", NULL));
    assert_false(ef_pattern_match("a*c", "abbb", NULL));
    assert_false(ef_pattern_match("{worker}", "", NULL));
    assert_false(ef_pattern_match("{account}:{worker}", "nocolon", &names));
    assert_string_equal(names.account, "a"); /* untouched on failure */
}

/* Goal: a pattern made to take for ever ends. */
static void
hostile_patterns_end(void **state)
{
    char text[251];

    (void)state;
    memset(text, 'a', 250);
    text[250] = '\0';
    assert_false(ef_pattern_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", text, NULL));
}

static struct ef_identity
identity_of(const struct ef_config *config, size_t rule, const char *id)
{
    struct ef_listed listed = {.title = "server.js"};
    struct ef_identity identity;

    snprintf(listed.id, sizeof(listed.id), "%s", id);
    ef_identity_find(config, &config->rules[rule], "workerd", &listed, &identity);
    return identity;
}

static void
names_come_from_rule_then_pattern_then_mapping(void **state)
{
    struct ef_config *config =
        good("region: fra\n"
             "scans:\n"
             "  - {inspector: 'h:1'}\n"
             "  - {inspector: 'h:1', account: fixed}\n"
             "  - {inspector: 'h:1', service: '{worker}/{version}'}\n"
             "mappings:\n"
             "  - {service: '{account}:{worker}:{version}'}\n"
             "  - {service: 'internal-{worker}', account: ops, region: lab}\n");
    struct ef_identity names = identity_of(config, 0, "acct:shop:v1");

    (void)state;
    assert_string_equal(names.account, "acct");
    assert_string_equal(names.worker, "shop");
    assert_string_equal(names.version, "v1");
    assert_string_equal(names.region, "fra");
    names = identity_of(config, 1, "acct:shop:v1");
    assert_string_equal(names.account, "fixed");
    assert_string_equal(names.worker, "shop");
    names = identity_of(config, 2, "api/v9");
    assert_string_equal(names.worker, "api");
    assert_string_equal(names.version, "v9");
    assert_string_equal(names.account, "default");
    names = identity_of(config, 0, "internal-mail");
    assert_string_equal(names.account, "ops");
    assert_string_equal(names.worker, "mail");
    assert_string_equal(names.version, "");
    assert_string_equal(names.region, "lab");
    names = identity_of(config, 0, "plain");
    assert_string_equal(names.worker, "plain");
    ef_config_free(config);
}

static void
other_code_under_a_name_is_kept_apart(void **state)
{
    static const char one[] = "1111111122222222333333334444444455555555666666667777777788888888";
    static const char two[] = "aaaaaaaa22222222333333334444444455555555666666667777777788888888";
    struct ef_identity names = {.account = "a", .worker = "w", .version = "v41"};
    struct ef_registry *registry = NULL;
    char version[EF_AGENT_NAME_BYTES];

    (void)state;
    assert_int_equal(ef_registry_open(8, &registry, NULL), EF_OK);
    assert_false(ef_registry_version(registry, &names, "", one, version));
    assert_string_equal(version, "v41");
    assert_true(ef_registry_version(registry, &names, "", two, version));
    assert_string_equal(version, "v41+aaaaaaaa");
    assert_false(ef_registry_version(registry, &names, "", one, version));
    assert_false(ef_registry_version(registry, &names, "", "", version)); /* wasm: unknown */
    assert_string_equal(version, "v41");
    assert_true(ef_registry_version(registry, &names, two, one, version)); /* configured hash */
    assert_string_equal(version, "v41+11111111");
    names.version[0] = '\0';
    assert_false(ef_registry_version(registry, &names, "", two, version));
    assert_string_equal(version, "aaaaaaaa2222");
    assert_false(ef_registry_version(registry, &names, "", "", version));
    assert_string_equal(version, "unknown");
    memset(names.version, 'v', 128);
    ef_registry_version(registry, &names, one, two, version);
    assert_int_equal(strlen(version), 128);
    ef_registry_free(registry);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_configuration_is_read),
        cmocka_unit_test(json_is_yaml_too),
        cmocka_unit_test(empty_configuration_has_defaults),
        cmocka_unit_test(unknown_keys_are_named_with_their_line),
        cmocka_unit_test(wrong_forms_are_refused),
        cmocka_unit_test(wrong_values_are_named_by_key_and_line),
        cmocka_unit_test(dangerous_heap_intervals_are_refused),
        cmocka_unit_test(incomplete_or_contradicting_targets_are_refused),
        cmocka_unit_test(load_names_a_missing_file),
        cmocka_unit_test(example_configuration_is_good),
        cmocka_unit_test(patterns_capture_names),
        cmocka_unit_test(hostile_patterns_end),
        cmocka_unit_test(names_come_from_rule_then_pattern_then_mapping),
        cmocka_unit_test(other_code_under_a_name_is_kept_apart),
    };

    return cmocka_run_group_tests_name("sampler.agent.config", tests, NULL, NULL);
}
