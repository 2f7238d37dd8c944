//! Values of text with variables, as far as the configuration determines them: `set $root /srv;` gives `$root` the value `/srv`.
//!
//! Directives that define variables add their values to the [`Registry`]. A variable with another source, such as a module or a
//! regular expression, ends the known text.

use crate::registry::{Registry, VALUES_MAX};
use crate::template::{Part, Template};
use crate::var_ref::VarRef;

/// Maximum depth of values that contain variables. A variable may contain itself: `set $a $a/b;`.
const DEPTH_MAX: u32 = 8;

/// A value of a text, or the beginning of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownText {
    /// The value, or the text before the first unknown variable.
    pub text: String,
    /// The first unknown variable, if there is one.
    pub unknown: Option<Unknown>,
}

/// A variable whose value only a request determines.
#[derive(Clone, Debug, PartialEq)]
pub struct Unknown {
    /// The variable.
    pub variable: VarRef,
    /// The text between the variable and the next one; empty if the variable is inside the value of another variable.
    pub after: String,
}

/// Returns all values that a text with variables can have, without duplicates.
pub fn known_texts(template: &Template, registry: &Registry) -> Vec<KnownText> {
    expand(template, registry, 0)
}

fn expand(template: &Template, registry: &Registry, depth: u32) -> Vec<KnownText> {
    let (mut complete, mut found) = (vec![String::new()], Vec::new());
    for (index, part) in template.parts.iter().enumerate() {
        let variable = match part {
            Part::Text(text) => {
                complete.iter_mut().for_each(|value| value.push_str(text));
                continue;
            }
            Part::Variable(variable) => variable,
        };
        let values = known_values(variable, registry, depth)
            .filter(|values| complete.len().saturating_mul(values.len()) <= VALUES_MAX);
        let Some(values) = values else {
            let after = match template.parts.get(index + 1) {
                Some(Part::Text(text)) => text.to_string(),
                _ => String::new(),
            };
            let unknown = Some(Unknown { variable: variable.clone(), after });
            found.extend(complete.drain(..).map(|text| KnownText { text, unknown: unknown.clone() }));
            break;
        };
        let mut longer = Vec::new();
        for before in &complete {
            for KnownText { text, unknown } in &values {
                let text = format!("{before}{text}");
                match unknown {
                    None => longer.push(text),
                    Some(Unknown { variable, .. }) => {
                        let unknown = Unknown { variable: variable.clone(), after: String::new() };
                        found.push(KnownText { text, unknown: Some(unknown) });
                    }
                }
            }
        }
        complete = longer;
    }
    found.extend(complete.into_iter().map(|text| KnownText { text, unknown: None }));
    let mut distinct: Vec<KnownText> = Vec::with_capacity(found.len());
    for value in found {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Returns the values that the configuration gives to a variable; `None` if it has another source, or too many values.
fn known_values(variable: &VarRef, registry: &Registry, depth: u32) -> Option<Vec<KnownText>> {
    let VarRef::Slot(slot) = variable else { return None };
    let values = registry.values(*slot).filter(|values| values.len() <= VALUES_MAX && depth < DEPTH_MAX)?;
    let mut found = Vec::new();
    for value in values {
        found.extend(expand(value, registry, depth + 1));
        if found.len() > VALUES_MAX {
            return None;
        }
    }
    Some(found)
}

/// Returns a text with the names of its variables.
pub fn written(template: &Template, registry: &Registry) -> String {
    let mut text = String::new();
    for part in template.parts.iter() {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Variable(VarRef::Slot(slot)) => {
                text.push('$');
                text.push_str(registry.name(*slot));
            }
            Part::Variable(variable) => text.push_str(&format!("{variable:?}")),
        }
    }
    text
}
