/* A client's byte beside its ring, and the server that looks at the ring only where the byte is
 * set: src/message/mailboxes.hpp, and visit() of src/message/server.cpp.
 *
 * Modelled: stores that become visible late, in their order (a store buffer, or WRITEs of one queue
 * pair); the exchange of the byte; a look that takes one message at most; the server that sets the
 * byte again where it sees another one. Left out: what a frame is (whole or not there), sleeping,
 * which does not ask the byte.
 *
 * Settings: items (messages that the client sends).
 */
#include "common.pml"

local byte items;

mtype = { FRAME, BYTE };
chan stores = [6] of { mtype }; /* of the client, on their way to the server's memory */
byte laid;                      /* frames that lie in the ring */
bit box;
byte taken;

proctype Client() {
    byte sent;
    do
    :: sent < items ->
        sent++;
        if
        :: wrong(byte_first) -> stores!BYTE; stores!FRAME
        :: else -> stores!FRAME; stores!BYTE
        fi
    :: sent == items -> break
    od
}

proctype Memory() {
    mtype kind;
end:
    do
    :: atomic {
        stores?kind ->
        if
        :: kind == FRAME -> laid++
        :: kind == BYTE -> box = 1
        fi;
        kind = 0
       }
    od
}

proctype Server() {
    byte seen;
    do
    :: taken == items -> break
    :: taken < items ->
        box == 1; /* the scan */
        if
        :: wrong(look_first) -> seen = laid; box = 0
        :: else -> box = 0; seen = laid
        fi;
        if
        :: seen > taken ->
            taken++;
            if
            :: wrong(no_reminder) -> skip
            :: else ->
                if
                :: laid > taken -> box = 1
                :: else
                fi
            fi
        :: else
        fi
    od
}

init {
    start();
    c_code { now.items = setting("MODEL_items", 3); }
    atomic {
        run Client();
        run Memory();
        run Server()
    }
}
