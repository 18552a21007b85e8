/* One connection of the connection manager, RC: REQ, REP, RTU, REJ, DREQ, DREP between two ends:
 * src/cm/connection.hpp.
 *
 * Modelled: what each end says and tells its program in each state; programs that accept or refuse,
 * confirm or refuse, disconnect, answer a disconnect, and (closes) close, whenever it is their turn; MADs
 * that are lost, doubled and overtaken, some of each; a timer that runs out when nothing else goes on,
 * and `early` times at any moment; `retries` of each MAD that is not answered; timewait. With `deaths`
 * a process dies at any moment, and the carrier hangs up behind what had been said. With `waits` the
 * passive program does not disconnect of its own.
 * Left out: MRA, which only makes a wait longer, and numbers: comm ids, queue pairs, times; SIDR, which is
 * one question and its answer; establish().
 *
 * A MAD is given up only if so many were lost that no repetition came through (was_hopeless).
 *
 * Settings: retries, losses, doubles, moves, early, closes, deaths, waits.
 */
#include "common.pml"

#define active 0
#define passive 1

mtype = { REQ, REP, RTU, REJ, DREQ, DREP }
mtype = { idle, request_sent, request_received, response_sent, response_received, established,
          disconnect_sent, disconnect_received, timewait, over }

/* What a REJ speaks of. */
#define of_req 0
#define of_rep 1
#define of_other 2
#define nothing 3

/* Events that were given. */
#define REQUEST 1
#define RESPONSE 2
#define UNREACHABLE 4
#define REJECTED 8
#define ESTABLISHED 16
#define DISCONNECTED 32
#define TIMEWAIT_EXIT 64

local byte retries;
byte losses, doubles, moves, early, deaths;
bit closes, waits;

chan to[2] = [3] of { mtype, byte };
mtype state[2], asked[2];
byte left[2], told[2], refused[2];
bit closed[2], dead[2], cut[2], accepted, confirmed, was_early;
byte lost;

hidden byte is_new, is_first, was_confirmed, was_told, was_hopeless, after_disconnected, is_open;

#define other (1 - me)
#define is_turn(end) (state[end] == request_received || state[end] == response_received || \
                      state[end] == disconnect_received)
#define is_asking (state[me] == request_sent || state[me] == response_sent || \
                   state[me] == disconnect_sent)
#define is_quiet (empty(to[0]) && empty(to[1]) && (dead[other] || !is_turn(other)))

inline send(kind, about) {
    if
    :: cut[me] || dead[other]
    :: !cut[me] && !dead[other] && nfull(to[other]) -> to[other]!kind, about
    :: !cut[me] && !dead[other] && full(to[other]) -> lost++
    fi
}
inline tell(event) {
    if
    :: closed[me] && !wrong(told_after_close)
    :: else ->
        is_open = !closed[me];
        assert(is_open);
        is_new = (told[me] & event) == 0;
        assert(is_new);
        is_first = !((event == RESPONSE || event == UNREACHABLE) && me == active) || told[me] == 0;
        assert(is_first);
        after_disconnected = event != TIMEWAIT_EXIT || (told[me] & DISCONNECTED) != 0;
        assert(after_disconnected);
        told[me] = told[me] | event
    fi
}
inline ask(next, kind) {
    state[me] = next; asked[me] = kind; left[me] = retries;
    send(kind, nothing)
}
inline refuse(about, next) {
    refused[me] = about;
    send(REJ, about);
    state[me] = next
}
inline disconnects() {
    if
    :: state[me] == established -> ask(disconnect_sent, DREQ)
    :: state[me] == disconnect_received -> state[me] = timewait; send(DREP, nothing)
    fi
}

inline take_req() {
    if
    :: state[me] == idle -> state[me] = request_received; tell(REQUEST)
    :: state[me] == response_sent -> send(REP, nothing)
    :: (state[me] == timewait || state[me] == over) && refused[me] != nothing -> send(REJ, refused[me])
    :: else
    fi
}
inline take_rep() {
    if
    :: state[me] == request_sent || (state[me] == over && wrong(late_rep_taken)) ->
        state[me] = response_received; tell(RESPONSE)
    :: state[me] == response_received && wrong(rep_told_again) -> tell(RESPONSE)
    :: (state[me] == established && !wrong(rep_unanswered)) ||
       (state[me] == disconnect_sent && !wrong(rep_unanswered_at_the_end)) -> send(RTU, nothing)
    :: state[me] != request_sent && (state[me] == timewait || state[me] == over) &&
       refused[me] != nothing && !wrong(late_rep_taken) -> send(REJ, refused[me])
    :: else
    fi
}
inline take_rtu() {
    if
    :: state[me] == response_sent || (state[me] == established && wrong(rtu_told_again)) ->
        was_confirmed = confirmed;
        assert(was_confirmed);
        state[me] = established; tell(ESTABLISHED)
    :: else
    fi
}
inline take_dreq() {
    if
    :: (state[me] == response_sent && !wrong(dreq_waits_for_rtu)) || state[me] == established ->
        state[me] = disconnect_received; tell(DISCONNECTED)
    :: state[me] == disconnect_received && wrong(dreq_told_again) -> tell(DISCONNECTED)
    :: state[me] == disconnect_sent && !wrong(crossing_unanswered) ->
        send(DREP, nothing); state[me] = timewait; tell(DISCONNECTED)
    :: (state[me] == timewait || state[me] == over) && !wrong(dreq_unanswered) -> send(DREP, nothing)
    :: else
    fi
}
inline take_drep() {
    if
    :: state[me] == disconnect_sent -> state[me] = timewait; tell(DISCONNECTED)
    :: else
    fi
}
inline take_rej(about) {
    if
    :: (state[me] == request_sent && about != of_rep) ||
       ((state[me] == request_received || state[me] == response_sent) && about != of_req) ->
        state[me] = over; tell(REJECTED)
    :: (state[me] == response_received || state[me] == established || state[me] == disconnect_sent) &&
       about != of_req ->
        state[me] = timewait; tell(REJECTED)
    :: else
    fi
}
inline take(kind, about) {
    if
    :: kind == REQ -> take_req()
    :: kind == REP -> take_rep()
    :: kind == RTU -> take_rtu()
    :: kind == REJ -> take_rej(about)
    :: kind == DREQ -> take_dreq()
    :: kind == DREP -> take_drep()
    fi
}

inline give_up() {
    was_hopeless = was_early || dead[other] || lost > retries;
    assert(was_hopeless);
    if
    :: state[me] == request_sent -> refuse(of_other, over); tell(UNREACHABLE)
    :: state[me] == response_sent && !wrong(given_up_untold) -> refuse(of_other, timewait); tell(UNREACHABLE)
    :: state[me] == response_sent && wrong(given_up_untold) -> refuse(of_other, timewait)
    :: state[me] == disconnect_sent -> state[me] = timewait; tell(DISCONNECTED)
    fi
}
inline expire() {
    if
    :: left[me] > 0 && !(wrong(req_not_repeated) && asked[me] == REQ) &&
       !(wrong(rep_not_repeated) && asked[me] == REP) &&
       !(wrong(dreq_not_repeated) && asked[me] == DREQ) ->
        left[me]--; send(asked[me], nothing)
    :: else -> give_up()
    fi
}
inline close() {
    closed[me] = 1;
    if
    :: state[me] == request_sent -> refuse(of_other, over)
    :: state[me] == request_received -> refuse(of_req, over)
    :: state[me] == response_sent -> refuse(of_other, timewait)
    :: state[me] == response_received -> refuse(of_rep, over)
    :: state[me] == established || state[me] == disconnect_received -> disconnects()
    :: else
    fi
}
inline hang_up() {
    cut[me] = 1;
    if
    :: state[me] == request_sent || state[me] == request_received || state[me] == response_sent ->
        state[me] = over; tell(REJECTED)
    :: state[me] == response_received -> state[me] = timewait; tell(REJECTED)
    :: state[me] == established && !wrong(hang_up_ignored) ->
        state[me] = disconnect_received; tell(DISCONNECTED)
    :: state[me] == disconnect_sent -> state[me] = timewait; tell(DISCONNECTED)
    :: else
    fi
}

proctype End(bit me) {
    mtype kind;
    byte about;
    if
    :: me == active -> atomic { ask(request_sent, REQ) }
    :: me == passive
    fi;
end_idle:
    do
    :: state[me] != idle -> break
    :: dead[me] -> goto gone
    :: atomic { state[me] == idle && !dead[me] && nempty(to[me]) ->
        to[me]?kind, about; take(kind, about); kind = 0; about = 0 }
    od;
    do
    :: atomic { !dead[me] && nempty(to[me]) -> to[me]?kind, about; take(kind, about); kind = 0; about = 0 }
    :: atomic { !dead[me] && dead[other] && empty(to[me]) && !cut[me] -> hang_up() }
    /* The program. */
    :: atomic { !dead[me] && !closed[me] && state[me] == request_received ->
        accepted = 1; ask(response_sent, REP) }
    :: atomic { !dead[me] && !closed[me] && state[me] == request_received -> refuse(of_req, over) }
    :: atomic { !dead[me] && !closed[me] && state[me] == response_received ->
        confirmed = 1; state[me] = established; send(RTU, nothing) }
    :: atomic { !dead[me] && !closed[me] && state[me] == response_received -> refuse(of_rep, over) }
    :: atomic { !dead[me] && !closed[me] && state[me] == established && !(waits && me == passive) ->
        disconnects() }
    :: atomic { !dead[me] && !closed[me] && state[me] == disconnect_received -> disconnects() }
    :: atomic { closes && !dead[me] && !closed[me] && state[me] != over -> close() }
    /* The clock. */
    :: atomic { !dead[me] && is_asking && is_quiet && !(dead[other] && !cut[me]) -> expire() }
    :: atomic { !dead[me] && is_asking && early > 0 -> early--; was_early = 1; expire() }
    :: atomic { !dead[me] && state[me] == timewait && !wrong(timewait_for_ever) ->
        state[me] = over;
        if
        :: (told[me] & DISCONNECTED) != 0 || wrong(timewait_told_always) -> tell(TIMEWAIT_EXIT)
        :: else
        fi
       }
    :: dead[me] -> goto gone
    :: state[me] == over -> break
    od;
    was_told = closed[me] || (me == active && (told[me] & (RESPONSE | REJECTED | UNREACHABLE)) != 0) ||
        (me == passive && (!accepted ||
                           (told[me] & (ESTABLISHED | REJECTED | UNREACHABLE | DISCONNECTED)) != 0));
    assert(was_told);
gone:
end:
    do
    :: atomic { to[me]?kind, about ->
        if
        :: dead[me]
        :: !dead[me] -> take(kind, about)
        fi;
        kind = 0; about = 0 }
    od
}

/* Loses, doubles and delays, as long as it may; and ends processes. */
proctype Network() {
    mtype kind;
    byte about;
    bit end;
end_network:
    do
    :: atomic { losses > 0 && nempty(to[0]) -> to[0]?kind, about; losses--; lost++; kind = 0; about = 0 }
    :: atomic { losses > 0 && nempty(to[1]) -> to[1]?kind, about; losses--; lost++; kind = 0; about = 0 }
    :: atomic { doubles > 0 && nempty(to[0]) && nfull(to[0]) ->
        to[0]?<kind, about>; to[0]!kind, about; doubles--; kind = 0; about = 0 }
    :: atomic { doubles > 0 && nempty(to[1]) && nfull(to[1]) ->
        to[1]?<kind, about>; to[1]!kind, about; doubles--; kind = 0; about = 0 }
    :: atomic { moves > 0 && len(to[0]) > 1 ->
        to[0]?kind, about; to[0]!kind, about; moves--; kind = 0; about = 0 }
    :: atomic { moves > 0 && len(to[1]) > 1 ->
        to[1]?kind, about; to[1]!kind, about; moves--; kind = 0; about = 0 }
    :: atomic { deaths > 0 && !dead[0] && !dead[1] -> deaths--; dead[0] = 1 }
    :: atomic { deaths > 0 && !dead[0] && !dead[1] -> deaths--; dead[1] = 1 }
    od
}

init {
    start();
    c_code {
        now.retries = setting("MODEL_retries", 1);
        now.losses = setting("MODEL_losses", 1);
        now.doubles = setting("MODEL_doubles", 1);
        now.moves = setting("MODEL_moves", 1);
        now.early = setting("MODEL_early", 0);
        now.closes = setting("MODEL_closes", 0);
        now.deaths = setting("MODEL_deaths", 0);
        now.waits = setting("MODEL_waits", 0);
    }
    state[0] = idle; state[1] = idle;
    refused[0] = nothing; refused[1] = nothing;
    atomic { run End(active); run End(passive); run Network() }
}
