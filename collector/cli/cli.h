/*
 * The parts that the commands of `everflame` share: what was asked, words for people, data for
 * programs.
 *
 * Invariants: data goes to standard output through `out` and is written in one piece when the
 * command has ended, so an error never leaves half of an answer behind; words go to standard
 * error, one line each, with control characters replaced. A function that returns an exit code
 * has said why when it is not 0. One thread.
 */
#ifndef COLLECTOR_CLI_CLI_H
#define COLLECTOR_CLI_CLI_H

#include "collector/cli/options.h"
#include "proto/base/buf.h"
#include "proto/base/err.h"
#include "proto/formats/formats.h"

#include <stdbool.h>
#include <stddef.h>

enum ef_cli_exit {
    EF_CLI_OK = 0,
    EF_CLI_FAILED = 1,
    EF_CLI_USAGE = 2,
    EF_CLI_NOT_FOUND = 3, /* no such worker or version, or nothing is kept of this range */
    EF_CLI_NOTHING = 4,   /* the range is known, but nothing was sampled in it */
    EF_CLI_INTERRUPTED = 130,
};

#define EF_CLI_LIST_MAX 64                           /* values of a repeated option; chosen */
#define EF_CLI_OUTPUT_BYTES_MAX ((size_t)640 << 20)  /* above every answer and every conversion */
#define EF_CLI_JSON_BYTES_MAX ((size_t)64 << 20)     /* a JSON answer; chosen */
#define EF_CLI_PROFILE_BYTES_MAX ((size_t)256 << 20) /* a profile as answer; chosen */
#define EF_CLI_IMPORT_BYTES_MAX ((size_t)64 << 20)   /* the server's limit of a request body */

struct ef_cli_list {
    const char *items[EF_CLI_LIST_MAX]; /* borrowed from argv */
    size_t count;
};

/* How to write for people. */
struct ef_cli_style {
    bool tty;      /* standard output is a terminal */
    bool colour;   /* tty, and nothing forbids it */
    bool utf8;     /* the locale's characters are UTF-8 */
    bool progress; /* standard error is a terminal that can redraw a line */
    size_t width;  /* columns of the terminal; 0 = unlimited (not a terminal) */
};

struct ef_cli;

struct ef_cli_command {
    const char *words;     /* "workers versions list" */
    const char *arguments; /* "IN OUT", for the help */
    int argument_count_min, argument_count_max;
    bool options_shown; /* in help and completions */
    const char *sentence;
    const char *examples; /* one a line */
    const struct ef_option *options;
    size_t option_count;
    int (*run)(struct ef_cli *cli); /* gives the exit code */
};

struct ef_cli {
    const struct ef_cli_command *command;
    struct ef_cli_values values;
    struct ef_cli_list versions; /* every --version */
    int argument_count;
    char **arguments; /* borrowed from argv */
    struct ef_cli_style style;
    struct ef_buf out;
};

/* Runs the program; gives the exit code. Changes signal handlers: call once, from main. */
int ef_cli_main(int argc, char **argv);

/* --- commands.c: the table --- */
const struct ef_cli_command *ef_cli_command_at(size_t index); /* NULL after the last */
/* The command whose words the arguments begin with, and how many words those are. NULL if none. */
const struct ef_cli_command *ef_cli_command_find(int argc, char *const *argv, int *ret_word_count);
/* Whether at least one command begins with these words ("workers", "workers versions"). */
bool ef_cli_command_is_group(int argc, char *const *argv, int *ret_word_count);
/* Says which command there is not, and the nearest one. Gives EF_CLI_USAGE. */
int ef_cli_command_unknown(int argc, char *const *argv);

#define X(id, ...) int ef_cli_##id(struct ef_cli *cli);
#include "collector/cli/commands.def"
#undef X

/* --- parse.c: from argv to values --- */
/*
 * Takes every "--<name> V" and "--<name>=V" of one option out of argv, in order; what follows "--"
 * and what is another option's value stays. Each value is checked like a single one. The option
 * table has no lists, and this keeps them out of it. EF_EUSAGE for a missing, wrong or 65th value.
 */
EF_MUST_USE ef_rc ef_cli_take_repeated(const struct ef_option *options, size_t option_count,
                                       const char *name, void *holder, int *argc, char **argv,
                                       struct ef_cli_list *list, struct ef_err *err);
/*
 * Default, then environment (EVERFLAME_URL, EVERFLAME_WORKER_ID), then flags. argv[0] is the last
 * word of the command. *ret_help and *ret_version: somebody asked for that instead.
 */
EF_MUST_USE ef_rc ef_cli_parse(struct ef_cli *cli, int argc, char **argv, bool *ret_help,
                               bool *ret_version, struct ef_err *err);
/* Checks the values that have a meaning (worker given, times, range, type, format); the exit code
 * is EF_CLI_OK or EF_CLI_USAGE. */
int ef_cli_need_worker(const struct ef_cli *cli);
int ef_cli_check_range(const struct ef_cli *cli);
int ef_cli_check_type(const struct ef_cli *cli);
/* The format of this name; NULL and said when there is none. */
const struct ef_format_ops *ef_cli_find_format(const char *name);

/* --- words.c: standard error, and text for people --- */
/* "everflame: <text>" as one line on standard error. */
void ef_cli_say(const char *fmt, ...) EF_PRINTF(1, 2);
/* Says a wrong usage and where the help is; gives EF_CLI_USAGE. */
int ef_cli_say_usage(const struct ef_cli_command *command, const char *fmt, ...) EF_PRINTF(2, 3);
/* Says err and gives the exit code that belongs to it. */
int ef_cli_say_err(const struct ef_err *err);
/* Appends text with control characters, line breaks, direction marks and bad bytes replaced by
 * '?': names come from outside and must not steer a terminal. */
void ef_cli_clean(struct ef_buf *out, const char *text);
/* Columns that clean text takes on a terminal. */
size_t ef_cli_text_width(const char *text);
/* Breaks lines from `start` on at blanks so that they fit the terminal; further lines are indented.
 */
void ef_cli_wrap(struct ef_buf *out, size_t start, const struct ef_cli_style *style, size_t indent);
/* Each writes into buf (at least 64 bytes) and returns it. */
const char *ef_cli_count_text(double count, char *buf, size_t len);   /* "12,345" */
const char *ef_cli_bytes_text(double bytes, char *buf, size_t len);   /* "12.3 MiB" */
const char *ef_cli_ns_text(double ns, char *buf, size_t len);         /* "12.3 s" */
const char *ef_cli_percent_text(double ratio, char *buf, size_t len); /* "12.34 %" */
/* "12.3 s" for nanoseconds, "12.3 MiB" for bytes, otherwise "12,345 <unit>". */
const char *ef_cli_value_text(double value, const char *unit, char *buf, size_t len);
/* "12.34 %  +0.41  -0.38": both sides, because an interval on the log scale is not symmetric. A
 * missing interval (NAN) shows as such. */
const char *ef_cli_share_text(double share, double low, double high, char *buf, size_t len);
/* Colour: appends the escape when the style has colour. */
void ef_cli_paint(struct ef_buf *out, const struct ef_cli_style *style, const char *escape);
#define EF_CLI_BOLD "\033[1m"
#define EF_CLI_DIM "\033[2m"
#define EF_CLI_YELLOW "\033[33m"
#define EF_CLI_PLAIN "\033[0m"

/* --- output.c: standard output and files --- */
/* Makes 0, 1 and 2 refer to something, so that no file of ours becomes "standard output". */
void ef_cli_guard_descriptors(void);
/* Ends at SIGINT with 130, at SIGTERM with 143, at SIGHUP with 129; removes an unfinished file
 * first. */
void ef_cli_catch_signals(void);
void ef_cli_style_detect(struct ef_cli_style *style);
/* Writes everything to standard output. A reader that went away ends the program by SIGPIPE. */
int ef_cli_flush(const struct ef_buf *out);
/* Exit code EF_CLI_USAGE when binary data would go to a terminal. path "" or "-": standard output.
 */
int ef_cli_refuse_binary(const struct ef_cli *cli, const struct ef_format_ops *format,
                         const char *path, const char *way_out);
/*
 * Writes a file under a temporary name beside it and renames it when all is written; what is not a
 * regular file (a device, a pipe) is written directly. A symbolic link is followed.
 */
EF_MUST_USE ef_rc ef_cli_write_file(const char *path, const void *data, size_t len,
                                    struct ef_err *err);
/* Reads a whole file ("-": standard input) of at most bytes_max. Gives the bytes in `ret`, which
 * the caller finishes. */
EF_MUST_USE ef_rc ef_cli_read_file(const char *path, size_t bytes_max, struct ef_buf *ret,
                                   struct ef_err *err);

/* --- help.c --- */
void ef_cli_help_all(struct ef_buf *out);
void ef_cli_help_group(struct ef_buf *out, int argc, char *const *argv, int word_count);
void ef_cli_help_command(struct ef_buf *out, const struct ef_cli_command *command);
void ef_cli_help_markdown(struct ef_buf *out);
void ef_cli_completions_bash(struct ef_buf *out);
void ef_cli_completions_zsh(struct ef_buf *out);
void ef_cli_completions_fish(struct ef_buf *out);
/* Flag of an option without the dashes: "worker-id", "step". */
const char *ef_cli_flag_name(const struct ef_option *option, char *buf, size_t len);

#endif
