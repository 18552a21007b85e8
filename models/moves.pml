/* A client that goes from one server of a group to another: src/message/server_moves.cpp, and
 * take_move() and connect() of src/message/client/client_session.cpp.
 *
 *   Client   sends requests, and sets the byte of the server that it was told of last; may look for
 *            answers, or not
 *   Device   executes what the client has posted: a frame into its ring, a byte at a server
 *   Server   two of them: the one that has the client takes its requests, answers them at once or
 *            later, and gives the client away at any time when it owes it nothing
 *   Network  breaks the connection, if it may
 *
 * Modelled: what one server asks of another is done in its order; what the client posts arrives in
 * its order, any time later; a byte is registered with the client's connection, and a WRITE to one
 * that is not costs it the connection; the place that is kept until the client has said that it
 * knows of the other; a client that comes back asks for the server that it was told of last, which
 * sends it on; requests that are sent again.
 * Left out: the order of frame and byte, and a look that takes none (mailbox.pml); who else gets a
 * place (place.pml); sleeping; servers that have no place.
 *
 * Settings: items (requests), moves (how often it is given away), breaks (how often its connection
 * breaks), reads (1: the client looks for answers).
 */
#include "common.pml"

#define NOBODY 2

local byte items, reads;
hidden byte is_in_order, byte_is_registered, session_is_known;

mtype = { REQUEST, MOVED, BYTE, WELCOME, ANSWER, ARRIVE, GIVE_UP, COME_BACK };

chan posted = [8] of { mtype, byte };    /* by the client, and not executed yet */
chan ring = [6] of { mtype, byte };      /* of its requests */
chan answers = [8] of { mtype, byte };   /* the other one */
chan ask[2] = [3] of { mtype };          /* of the one server by the other */
chan hello[2] = [0] of { bit };          /* of a client that comes back */
byte owner;                              /* who has the client */
bit kept[2];                             /* its place is kept by whom it has left */
bit came_from[2];                        /* it may not know that it is here */
bit registered[2];                       /* its byte is */
bit box[2];
bit link;                                /* its connection is there */
byte moves, breaks;
byte taken;                              /* the highest number that was executed */
byte pending;                            /* a number without an answer; 0: none is */
bit pending_at;                          /* whose reply it is */
byte answered;                           /* bits of numbers that the client has an answer to */
bit over;                                /* the client wants nothing more */

#define all_answered (answered == (1 << items) - 1)

inline answer(number) {
    if
    :: link -> answers!ANSWER,number
    :: else
    fi
}

proctype Client() {
    byte mine = 0, sent, number, its;
    do
    :: atomic {
        link && sent < items ->
        sent++;
        posted!REQUEST,sent;
        posted!BYTE,mine
       }
    :: atomic { link && reads && nempty(answers) ->
        answers?_,number;
        if
        :: number >= 8 -> /* a welcome */
            number = number - 8;
            if
            :: number != mine ->
                posted!MOVED,0;
                if
                :: wrong(byte_not_changed) -> posted!BYTE,mine
                :: else -> mine = number; posted!BYTE,mine
                fi
            :: else
            fi
        :: else -> answered = answered | (1 << (number - 1))
        fi;
        number = 0
       }
    :: !link && reads -> /* asks for the one that it knows */
        hello[mine]!1;
        link;
        atomic {
            answers?WELCOME,number;
            number = number - 8;
            its = 1;
            do
            :: its > sent -> break
            :: else ->
                if
                :: (answered & (1 << (its - 1))) == 0 -> posted!REQUEST,its
                :: else
                fi;
                its++
            od;
            posted!BYTE,number;
            if
            :: number != mine -> posted!MOVED,0; posted!BYTE,number; mine = number
            :: else
            fi;
            number = 0;
            its = 0
        }
    :: reads && all_answered && link -> over = 1; break
    :: !reads && sent == items -> over = 1; break
    od
}

proctype Device() {
    mtype kind;
    byte number;
end:
    do
    :: atomic {
        posted?kind,number ->
        if
        :: kind == BYTE ->
            byte_is_registered = registered[number];
            assert(byte_is_registered);
            box[number] = 1
        :: else -> ring!kind,number
        fi;
        kind = 0;
        number = 0
       }
    od
}

/* Behind a break: the client is here again, with a new connection. */
inline resume(s) {
    do
    :: ring?_,_
    :: empty(ring) -> break
    od;
    registered[s] = 1;
    box[s] = 0;
    link = 1;
    answers!WELCOME,(8 + s)
}

proctype Server(byte s) {
    mtype kind;
    byte number;
end:
    do
    :: atomic {
        ask[s]?kind ->
        if
        :: kind == ARRIVE ->
            registered[s] = 1;
            came_from[s] = 1;
            owner = s;
            box[s] = 1; /* it is reminded of the ring once */
            if
            :: link -> answers!WELCOME,(8 + s)
            :: else
            fi
        :: kind == GIVE_UP -> kept[s] = 0; registered[s] = 0
        :: kind == COME_BACK ->
            session_is_known = (owner == s);
            assert(session_is_known);
            resume(s)
        fi;
        kind = 0
       }
    :: atomic { /* its byte, or, while it may not know of it, the ring at any time */
        owner == s && (box[s] || (came_from[s] && !wrong(told_by_nobody))) && nempty(ring) ->
        ring?kind,number;
        if
        :: kind == MOVED ->
            if
            :: came_from[s] -> came_from[s] = 0; ask[1 - s]!GIVE_UP
            :: else
            fi
        :: kind == REQUEST && number <= taken -> /* again */
            if
            :: number != pending -> answer(number)
            :: else
            fi
        :: else ->
            is_in_order = (number == taken + 1);
            assert(is_in_order);
            taken++;
            if
            :: answer(number)
            :: pending == 0 -> pending = number; pending_at = s
            fi
        fi;
        if
        :: empty(ring) -> box[s] = 0
        :: else
        fi;
        kind = 0;
        number = 0
       }
    :: atomic { owner == s && box[s] && empty(ring) -> box[s] = 0 }
    :: atomic { /* a reply names a place, and finds nobody who has left it */
        pending != 0 && pending_at == s ->
        if
        :: owner == s -> answer(pending)
        :: else
        fi;
        pending = 0
       }
    :: atomic { /* given away */
        owner == s && moves != 0 && !came_from[s] &&
            (pending == 0 || wrong(moved_while_owed)) ->
        moves--;
        owner = NOBODY;
        kept[s] = 1;
        if
        :: wrong(place_given_early) -> kept[s] = 0; registered[s] = 0
        :: else
        fi;
        ask[1 - s]!ARRIVE
       }
    :: atomic {
        hello[s]?1 ->
        if
        :: owner == s -> /* who asks for this server knows of it */
            if
            :: came_from[s] -> came_from[s] = 0; ask[1 - s]!GIVE_UP
            :: else
            fi;
            resume(s)
        :: owner != s && kept[s] && !wrong(not_sent_on) -> ask[1 - s]!COME_BACK
        :: else ->
            session_is_known = 0;
            assert(session_is_known)
        fi
       }
    od
}

proctype Network() {
end:
    do
    :: atomic {
        link && breaks != 0 && !over ->
        breaks--;
        link = 0;
        do
        :: posted?_,_
        :: answers?_,_
        :: empty(posted) && empty(answers) -> break
        od
       }
    od
}

/* What must come in the end: each request was executed; and has its answer, where it is looked for. */
proctype Program() {
    taken == items && (!reads || all_answered)
}

init {
    start();
    c_code {
        now.items = setting("MODEL_items", 2);
        now.moves = setting("MODEL_moves", 2);
        now.breaks = setting("MODEL_breaks", 0);
        now.reads = setting("MODEL_reads", 1);
    }
    atomic {
        owner = 0;
        registered[0] = 1;
        link = 1;
        run Client();
        run Device();
        run Server(0);
        run Server(1);
        run Network();
        run Program()
    }
}
