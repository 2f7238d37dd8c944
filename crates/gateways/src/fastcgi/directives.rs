//! Directives that only FastCGI has.

use std::sync::Arc;

use conf::{Args, Contexts, Spec};

use crate::Directive;
use crate::fastcgi::conf::{FastCgi, fastcgi};
use crate::passing::params::Param;
use crate::passing::pass;
use crate::passing::spec::row;

pub(super) const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "",
            "_pass",
            Contexts::LOCATION.or(Contexts::LOCATION_IF),
            Args::Exactly(1),
            "Passes requests on to this FastCGI server or group of servers: `HOST:PORT`, `unix:PATH` or a name.",
        ),
        pass::set::<FastCgi>,
    ),
    // Sent in the order of the configuration; a FastCGI server that gets a name twice uses the last value.
    Directive::scope(
        row(
            "_param",
            Args::Between(2, 3),
            "A parameter of requests; with `if_not_empty` it is omitted if its value is empty.",
        )
        .many(),
        |scope, cx| {
            let param = Param::read(cx)?;
            fastcgi(scope).params.make_mut(cx.block).push(param);
            Ok(())
        },
    ),
    Directive::scope(
        row("_index", Args::Exactly(1), "The file name appended to a URI that ends with a slash, in `$fastcgi_script_name`."),
        |scope, cx| {
            // As in nginx, an empty value cancels an inherited one.
            fastcgi(scope).index = Some(cx.arg(0).into()).filter(|_| !cx.arg(0).is_empty());
            Ok(())
        },
    ),
    Directive::scope(
        row(
            "_split_path_info",
            Args::Exactly(1),
            "A pattern whose first group becomes `$fastcgi_script_name`, and whose second group becomes \
             `$fastcgi_path_info`. The last directive of a block counts.",
        )
        .many(),
        |scope, cx| {
            let pattern = cx.pattern(cx.arg(0), false)?;
            if pattern.group_count() != 2 {
                return Err(cx.error(format_args!("pattern \"{}\" must have 2 captures", cx.arg(0))));
            }
            fastcgi(scope).split = Some(Arc::new(pattern));
            Ok(())
        },
    ),
    // PHP responds 200 even if a script failed; its messages in stderr name the error.
    Directive::scope(
        row(
            "_catch_stderr",
            Args::Exactly(1),
            "A text that makes a response invalid if the upstream sends it in a message (stderr) before the header section.",
        )
        .many(),
        |scope, cx| {
            fastcgi(scope).caught.make_mut(cx.block).push(cx.arg(0).into());
            Ok(())
        },
    ),
    Directive::scope(
        row("_keep_conn", Args::Flag, "Whether upstreams are requested to leave connections open; see `keepalive`.")
            .default("off"),
        |scope, cx| cx.flag(&mut fastcgi(scope).keep_conn),
    ),
];
