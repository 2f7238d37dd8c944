//! The same requests to Debian's nginx and to this server ([`common::beside`]): rewrites, conditions, and variables
//! that the configuration defines.

use crate::common::beside::{self, Case, ask, get};
use testkit::TempDir;

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    map $arg_m $mapped {
        default "other $arg_n";
        one 1;
        ~^r(?<rest>.+)$ "rest $rest $1";
        ~*^C "caseless";
        \~x tilde;
    }
    map $http_host $host_class { hostnames; default none; .example.com below; www.example.* begins; }
    map $pool $loop { default "a$pool"; }
    map $loop $pool { default "b$loop"; }
    map $arg_m $changing { volatile; default "$seen"; }
    geo $arg_ip $network {
        default none;
        10.0.0.0/8 ten;
        10.1.0.0/16 ten-one;
        10.1.2.3 single;
        10.2.0.0/15 gone;
        delete 10.2.0.0/15;
        255.255.255.255 broadcast;
        2001:db8::/32 documentation;
        2001:db8:1::/48 inner;
        ::ffff:10.9.0.0/112 mapped;
        0.0.0.0/1 low;
    }
    geo $arg_ip $range {
        ranges;
        default none;
        10.0.0.0-10.255.255.255 ten;
        10.1.0.0-10.1.0.255 inner;
        10.1.1.0-10.1.1.255 "with blank";
        10.1.2.0-10.1.2.9 gone;
        delete 10.1.2.0-10.1.2.9;
        255.255.255.0-255.255.255.254 high;
    }
    geo $bare_range { ranges; }
    geo $client { proxy 127.0.0.0/8; proxy 10.0.0.0/8; default none; 127.0.0.1 local; 10.0.0.0/8 ten; 1.0.0.0/8 one; ::1 six; }
    geo $last_client { proxy 127.0.0.0/8; proxy 10.0.0.0/8; proxy_recursive; 127.0.0.1 local; 10.0.0.0/8 ten; 1.0.0.0/8 one; }
    split_clients "${arg_id}salt" $part { 0.5% tiny; 33.33% third; 20% fifth; * rest; }
    split_clients $arg_id $some { 50% half; }
    server {
        listen 127.0.0.1:0;
        root ROOT;
        set $seen before;
        rewrite ^/server/(.*)$ /show/$1;
        rewrite ^/server-last/(.*)$ /show/$1 last;
        rewrite ^/server-break/(.*)$ /show/$1 break;
        rewrite ^/server-alias/(.*)$ /aliased/$1 break;
        rewrite ^/gone/(.*)$ http://example.org/$1;
        if ($arg_server = yes) { return 203 "server if\n"; }
        if ($arg_set) { set $seen "set $arg_set"; }
        location /show/ { return 200 "$uri|$args|$1|$seen\n"; }
        location /last/ { rewrite ^/last/(.*)$ /show/$1 last; return 500; }
        location /break/ { rewrite ^/break/(.*)$ /$1 break; }
        location /next/ { rewrite ^/next/(.*)$ /middle/$1; rewrite ^/middle/(.*)$ /show/$1; }
        location /args/ { rewrite ^/args/(.*)$ /show/?a=$1 last; }
        location /noargs/ { rewrite ^/noargs/(.*)$ /show/$1? last; }
        location /ownargs/ { rewrite ^/ownargs/(.*)$ /show/?b=$1&$args? last; }
        location /two/ { rewrite ^/two/(.*)$ /show/?a=$1?b=$1 last; }
        location /redirect/ { rewrite ^/redirect/(.*)$ /to/$1 redirect; }
        location /permanent/ { rewrite ^/permanent/(.*)$ /to/$1?x=$1 permanent; }
        location /url/ { rewrite ^/url/(.*)$ https://example.org/$1?; }
        location /scheme/ { rewrite ^/scheme/(.*)$ $scheme://example.org/$1 break; }
        location /cycle/ { rewrite ^/cycle/(.*)$ /cycle/x$1; }
        location /cycle-page/ { error_page 500 /show/page; rewrite ^ /cycle-page/x; }
        location /empty/ { rewrite ^ $arg_none?; }
        location /stop/ { rewrite ^/stop/(.*)$ /show/$1; break; return 500; }
        location /stay/ { set $seen stay; break; return 500; }
        location /aliased/ { alias ROOT/dir/; rewrite ^/aliased/x(.*)$ /aliased/$1 break; }
        location /quoted/ {
            if ($uri ~ ^/quoted/(.*)$) { set $seen $1; }
            return 200 "$seen|$1\n";
        }
        location /quoted-behind/ {
            rewrite ^/quoted-behind/(.*)$ /quoted-behind/$1;
            set $seen $1;
            break;
        }
        location /if/ {
            if ($arg_a) { return 200 "a is true\n"; }
            if ($arg_b = x) { return 200 "b is x\n"; }
            if ($arg_c != "") { return 200 "c is there\n"; }
            if ($arg_d ~ ^(.)(.)$) { return 200 "d is $2$1\n"; }
            if ($arg_e ~* ^q) { return 200 "e is q or Q\n"; }
            if ($arg_f) { }
            if ($arg_g !~ ^$) { return 200 "g is $arg_g\n"; }
            return 200 "nothing\n";
        }
        location /files/ {
            if (-f ROOT$arg_p) { set $seen "file"; }
            if (-d ROOT$arg_p) { set $seen "$seen folder"; }
            if (-e ROOT$arg_p) { set $seen "$seen any"; }
            if (!-e ROOT$arg_p) { set $seen "$seen none"; }
            if (!-f ROOT$arg_p) { set $seen "$seen nofile"; }
            if (-x ROOT$arg_p) { set $seen "$seen runs"; }
            return 200 "$seen\n";
        }
        location /inherit/ {
            default_type a/outer;
            alias ROOT/dir/;
            if ($arg_page) { error_page 404 =203 /show/inner; }
            if ($arg_root) { root ROOT; }
        }
        location /both/ {
            error_page 404 /show/none;
            if ($arg_a) { error_page 404 /show/one; }
            if ($arg_b) { error_page 404 /show/two; }
        }
        location /map { return 200 "$mapped|$rest|$host_class\n"; }
        location /volatile {
            set $seen one;
            set $first $changing;
            set $seen two;
            return 200 "$first $changing\n";
        }
        location ~ ^/named/(?<first>[^/]*)/(?<second>.*)$ {
            set $third "$second-$first";
            rewrite ^/named/(?<first>x)/ /show/$first$third last;
            return 200 "$first|$second|$third|$1\n";
        }
        location ~ ^/order/(.*)$ { return 200 "$1|$mapped|$1\n"; }
        location /loop { return 200 "$loop\n"; }
        location /split-head/ { rewrite ^ http://example.org$uri redirect; }
        location /geo { return 200 "$network|$range|$bare_range\n"; }
        location /client { return 200 "$client|$last_client\n"; }
        location /split { return 200 "$part|$some\n"; }
        location /unset { return 200 "<$never>\n"; }
        location /set { set $never x; set $args changed=1; return 200 "$never $args $arg_changed $is_args\n"; }
        location /header { set $http_x changed; return 200 "$http_x\n"; }
        location /headers { return 200 "$http_x|$cookie_a|$arg_a|$http_cookie\n"; }
        location @named { rewrite ^/tonamed/(.*)$ /show/$1; }
        location /tonamed/ { try_files /nothing @named; }
        location /internal/ { internal; return 200 "internal $uri\n"; }
        location /tointernal/ { rewrite ^/tointernal/(.*)$ /internal/$1 last; }
    }
}
"#;

fn site() -> TempDir {
    let dir = TempDir::new("site");
    for (name, text) in
        [("a.txt", "0123456789"), ("dir/b", "b of dir\n"), ("dir/index.html", "index"), ("b", "b of root\n")]
    {
        dir.write(name, text);
    }
    dir
}

fn compare(cases: Vec<Case>) {
    beside::compare(CONF, &site(), cases);
}

#[test]
fn rewrites_match_nginx() {
    compare(vec![
        get("/server/a"),
        get("/server-last/a?q"),
        get("/server-break/a"),
        get("/server-alias/b"),
        get("/gone/a?q=1"),
        get("/last/a%20b+c?q"),
        get("/break/a.txt"),
        get("/break/none"),
        get("/break/dir"),
        get("/next/a"),
        get("/args/a%20b%26%2B?q=1"),
        get("/args/a&b"),
        get("/args/a+b"),
        get("/noargs/a?q=1"),
        get("/ownargs/a?q=1"),
        get("/ownargs/%C3%A9?q=1"),
        get("/two/a?q=1"),
        get("/redirect/a?q=1"),
        get("/redirect/a%20b%3Fc%25d?q"),
        get("/redirect/%C3%A9%22%3C"),
        get("/redirect/a b"),
        get("/permanent/a%2Bb?q=1"),
        get("/permanent/a"),
        get("/url/a%20b?q"),
        get("/url/a%3Fb%41"),
        get("/scheme/a?q"),
        get("/cycle/"),
        get("/cycle-page/"),
        get("/empty/"),
        get("/stop/a"),
        get("/stop/dir/b"),
        get("/stay/a"),
        get("/aliased/b"),
        get("/aliased/xb"),
        get("/aliased/x"),
        get("/tonamed/a"),
        get("/internal/a"),
        get("/tointernal/a"),
        get("/split-head/a%0d%0aX-Own:%20x").differs("W4"),
        get("/split-head/a%20b%C3%A9").differs("H56"),
        ask("POST", "/last/a", &[("Content-Length", "0")]),
        ask("HEAD", "/redirect/a", &[]),
    ]);
}

#[test]
fn if_conditions_match_nginx() {
    let mut cases: Vec<Case> = [
        "",
        "a=1",
        "a=0",
        "a=",
        "a=00",
        "b=x",
        "b=X",
        "c=1",
        "c=",
        "d=xy",
        "d=xyz",
        "e=Q",
        "f=1",
        "g=1",
        "g",
        "server=yes",
        "server=no",
        "set=x&a=0",
    ]
    .iter()
    .map(|query| get(&format!("/if/?{query}")))
    .collect();
    cases.extend(
        ["/a.txt", "/dir", "/dir/b", "/none", "/a.txt/none", ""]
            .iter()
            .map(|path| get(&format!("/files/?p={path}"))),
    );
    cases.extend([
        get("/inherit/b"),
        get("/inherit/none?page=1"),
        get("/inherit/b?root=1"),
        get("/both/"),
        get("/both/?a=1"),
        get("/both/?b=1"),
        get("/both/?a=1&b=1"),
        get("/quoted/a%20b"),
        get("/quoted/a&b"),
        get("/quoted/a+b&c"),
        get("/quoted-behind/a%20b"),
        get("/show/x?set=1"),
    ]);
    compare(cases);
}

#[test]
fn variables_match_nginx() {
    let with_host = |host: &str| ask("GET", "/map", &[("Host", host)]);
    let fields = [("X", "one"), ("Cookie", "b=2; a = 1 ;c=3"), ("Cookie", "a=4")];
    compare(vec![
        get("/map?m=one"),
        get("/map?m=ONE"),
        get("/map?m=rest"),
        get("/map?m=r"),
        get("/map?m=cxx"),
        get("/map?m=Cxx&n=2"),
        get("/map?m=~x"),
        get("/map?m=none&n=2"),
        get("/map"),
        with_host("example.com"),
        with_host("a.Example.COM"),
        with_host("a.b.example.com"),
        with_host("www.example.org"),
        with_host("www.example"),
        get("/order/a?m=one"),
        get("/order/a?m=rest").differs("W2"),
        get("/loop").differs("W3"),
        get("/volatile"),
        get("/named/a/b/c"),
        get("/named/x/b"),
        get("/named//"),
        get("/unset"),
        get("/set?a=1"),
        ask("GET", "/header", &fields),
        ask("GET", "/headers?A=1&a=2", &fields),
        ask("GET", "/headers", &[("Cookie", "a=1")]),
    ]);
}

#[test]
fn geo_and_split_clients_match_nginx() {
    let addresses = [
        "10.0.0.0",
        "10.0.0.1",
        "9.255.255.255",
        "10.255.255.255",
        "11.0.0.0",
        "10.1.0.0",
        "10.1.0.255",
        "10.1.1.0",
        "10.1.1.255",
        "10.1.2.0",
        "10.1.2.3",
        "10.1.2.4",
        "10.1.2.10",
        "10.2.0.1",
        "0.0.0.0",
        "127.255.255.255",
        "128.0.0.0",
        "255.255.255.254",
        "255.255.255.255",
        "2001:db8::1",
        "2001:db8:1::1",
        "2001:db9::",
        "::",
        "::1",
        "::ffff:10.9.1.1",
        "::ffff:10.1.0.1",
        "ffff::",
        "",
        "x",
        "1.2.3",
        "10.0.0.1:80",
    ];
    let mut cases: Vec<Case> = addresses.iter().map(|ip| get(&format!("/geo?ip={ip}"))).collect();
    for value in [
        "1.1.1.1",
        "10.0.0.1",
        "1.1.1.1, 10.0.0.1",
        "1.1.1.1,10.0.0.1, 10.0.0.2",
        "2.2.2.2, 1.1.1.1, 10.0.0.1",
        "::1",
        "x",
        "1.1.1.1, x",
        "x, 10.0.0.1",
        "",
        "1.1.1.1:80",
        "10.0.0.1 1.1.1.1",
    ] {
        cases.push(ask("GET", "/client", &[("X-Forwarded-For", value)]));
    }
    cases.push(get("/client"));
    // Keys with every length modulo four, and enough keys to select each part of `split_clients`.
    cases.extend(
        (0..120).map(|id| get(&format!("/split?id={}", "x".repeat(id % 5) + &(id * 7919).to_string()))),
    );
    cases.push(get("/split"));
    compare(cases);
}
