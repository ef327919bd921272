/*
 * Decides what the first words of the command line mean, and the order of things: parse, run,
 * write. Main thread.
 */
#include "collector/cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int
flush_and_free(struct ef_cli *cli, int code)
{
    int flushed = ef_cli_flush(&cli->out);

    ef_buf_fini(&cli->out);
    return code != EF_CLI_OK ? code : flushed;
}

static int
run_command(struct ef_cli *cli, int argc, char **argv)
{
    bool help = false, version = false;
    struct ef_err err = {0};

    if (ef_cli_parse(cli, argc, argv, &help, &version, &err) != EF_OK)
        return ef_cli_say_usage(cli->command, "%s", err.msg);
    if (help)
        ef_cli_help_command(&cli->out, cli->command);
    else if (version)
        return ef_cli_version(cli);
    else
        return cli->command->run(cli);
    return EF_CLI_OK;
}

/* No command matches: the help of all or of a group, the version, or a mistake. */
static int
run_without_command(struct ef_cli *cli, int argc, char **argv)
{
    int word_count = 0;
    bool group = ef_cli_command_is_group(argc - 1, argv + 1, &word_count);
    const char *next = argv[1 + word_count];

    if (argc == 1) {
        struct ef_buf help;
        ef_buf_init(&help, EF_CLI_OUTPUT_BYTES_MAX);
        ef_cli_help_all(&help);
        EF_IGNORE(write(STDERR_FILENO, help.data, help.len) < 0, "nobody is left to tell");
        ef_buf_fini(&help);
        return EF_CLI_USAGE;
    }
    if (next != NULL && (strcmp(next, "--help") == 0 || strcmp(next, "-h") == 0)) {
        if (group)
            ef_cli_help_group(&cli->out, argc - 1, argv + 1, word_count);
        else
            ef_cli_help_all(&cli->out);
        return EF_CLI_OK;
    }
    if (next != NULL && !group && (strcmp(next, "--version") == 0 || strcmp(next, "-v") == 0))
        return ef_cli_version(cli);
    if (!group && next != NULL && next[0] == '-') {
        ef_cli_say("the command comes first, then its options: 'everflame top %.64s' ('everflame "
                   "help' lists the commands)",
                   next);
        return EF_CLI_USAGE;
    }
    return ef_cli_command_unknown(argc - 1, argv + 1);
}

int
ef_cli_main(int argc, char **argv)
{
    struct ef_cli cli = {0};
    int word_count = 0;
    int code;

    if (argc < 1)
        return EF_CLI_USAGE;
    ef_cli_guard_descriptors();
    ef_cli_catch_signals();
    ef_cli_style_detect(&cli.style);
    ef_buf_init(&cli.out, EF_CLI_OUTPUT_BYTES_MAX);
    cli.command = ef_cli_command_find(argc - 1, argv + 1, &word_count);
    if (cli.command != NULL)
        code = run_command(&cli, argc - word_count, argv + word_count);
    else
        code = run_without_command(&cli, argc, argv);
    return flush_and_free(&cli, code);
}
