/* Bytes to another process, in C.
 *     exs_copy listen 127.0.0.1:7000 > copy
 *     exs_copy 127.0.0.1:7000 < original
 */
#include <millrace/stream/exs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[256 << 10];
static exs_qhandle_t queue;

static void must(int holds) {
    if (holds) return;
    fprintf(stderr, "exs_copy: %s\n", exs_last_error());
    exit(1);
}

static exs_event_t next(void) {
    exs_event_t event;
    must(exs_qdequeue(queue, &event, 1, 10000) == 1);
    if (event.error == 0) return event;
    fprintf(stderr, "exs_copy: %s\n", strerror(event.error));
    exit(1);
}

int main(int argc, char** argv) {
    exs_shandle_t sock = exs_socket(SOCK_STREAM);
    exs_mhandle_t registered = exs_mregister(memory, sizeof memory);
    queue = exs_qcreate(8);
    must(sock != NULL && registered != NULL && queue != NULL && argc > 1);
    if (strcmp(argv[1], "listen") == 0) {
        exs_shandle_t listener = sock;
        exs_event_t got;
        must(argc > 2 && exs_bind(listener, argv[2]) == 0 && exs_listen(listener) == 0);
        must(exs_accept(listener, NULL, queue) == 0);
        sock = next().accepted;
        for (;;) {
            must(exs_recv(sock, memory, sizeof memory, 0, registered, NULL, queue) == 0);
            got = next();
            if (got.end_of_stream) break;
            fwrite(memory, 1, got.length, stdout);
        }
        must(exs_close(listener, 0) == 0);
    } else {
        size_t length;
        must(exs_connect(sock, argv[1], 10000, NULL, queue) == 0);
        (void)next();
        while ((length = fread(memory, 1, sizeof memory, stdin)) != 0) {
            must(exs_send(sock, memory, length, 0, registered, NULL, queue) == 0);
            (void)next();
        }
    }
    must(exs_close(sock, 10000) == 0);
    must(exs_qdelete(queue) == 0 && exs_mderegister(registered) == 0);
    return fflush(stdout) == 0 ? 0 : 1;
}
