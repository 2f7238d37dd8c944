//! The arguments of `location`.

use conf::{Error, Object};

use crate::config::Cx;
use crate::settings::locations::{Name, NameKind};
use crate::template::{self, Template};

impl Name {
    /// Parses the arguments of a `location`; `around` is the name of the enclosing location, if any.
    pub fn parse(cx: &mut Cx<'_>, around: Option<&Name>) -> Result<Name, Error> {
        let statement = cx.statement;
        let (modifier, text) = match statement.args.as_slice() {
            [modifier, text] => (modifier.text.as_str(), text.text.as_str()),
            _ => split_modifier(cx.arg(0)),
        };
        let prefix = |skips_regex| NameKind::Prefix { skips_regex };
        let kind = match modifier {
            "" if text.starts_with('@') && statement.args.len() == 1 => NameKind::Named,
            "" if text.starts_with('$') && statement.args.len() == 1 => {
                NameKind::Predicate(predicate(cx, text)?)
            }
            "" if statement.args.len() == 1 => prefix(false),
            "=" => NameKind::Exact,
            "^~" => prefix(true),
            "~" => NameKind::Pattern { pattern: cx.pattern(text, false)?, caseless: false },
            "~*" => NameKind::Pattern { pattern: cx.pattern(text, true)?, caseless: true },
            _ => return Err(cx.error(format_args!("invalid location modifier \"{modifier}\""))),
        };
        let name = Name { text: text.to_owned(), kind };
        match around.map(|around| name.fault_inside(around)) {
            Some(Err(fault)) => Err(cx.error(fault)),
            _ => Ok(name),
        }
    }

    /// Checks nginx's rules for nested locations.
    fn fault_inside(&self, around: &Name) -> Result<(), String> {
        let (inner, outer) = (&self.text, &around.text);
        match (&around.kind, &self.kind) {
            (NameKind::Exact, _) => {
                Err(format!("location \"{inner}\" cannot be inside the exact location \"{outer}\""))
            }
            (NameKind::Named, _) => {
                Err(format!("location \"{inner}\" cannot be inside the named location \"{outer}\""))
            }
            (_, NameKind::Named) => {
                Err(format!("named location \"{inner}\" can be on the server level only"))
            }
            // A predicate does not restrict the URI, so no nested location can contradict it.
            (NameKind::Predicate(_), _) | (_, NameKind::Pattern { .. } | NameKind::Predicate(_)) => Ok(()),
            _ if inner.starts_with(outer) => Ok(()),
            _ => Err(format!("location \"{inner}\" is outside location \"{outer}\"")),
        }
    }
}

/// Parses a predicate, which is exactly one variable. nginx takes further text as part of the variable's name, and no
/// such variable exists.
fn predicate(cx: &mut Cx<'_>, text: &str) -> Result<Template, Error> {
    match template::variable_name(&text[1..]) {
        Ok((_, length)) if length == text.len() - 1 => cx.template(text),
        _ => Err(cx.undefined(Object::Variable, &text[1..])),
    }
}

/// Splits a name that was written without a space after the modifier.
fn split_modifier(text: &str) -> (&str, &str) {
    let modifiers = ["=", "^~", "~*", "~"];
    let found = modifiers.iter().find_map(|modifier| Some((*modifier, text.strip_prefix(modifier)?)));
    found.unwrap_or(("", text))
}
