import CoreML
import Foundation

/// What can go wrong before Core ML itself runs.
public enum PackagedModelError: Error, CustomStringConvertible {
    case missing(resource: String)
    case size(name: String, wanted: Int, got: Int)
    case image(String)
    case output(name: String)

    public var description: String {
        switch self {
        case .missing(let resource):
            return "\(resource).mlpackage is not among the package's resources"
        case .size(let name, let wanted, let got):
            return "\(name) takes \(wanted) values, got \(got)"
        case .image(let reason):
            return reason
        case .output(let name):
            return "the model gave no output \(name): it is not the one this class was made for"
        }
    }
}

/// The Core ML model among the package's resources. Tensors are found by name, values are row-major.
final class PackagedModel {
    private let model: MLModel

    init(resource: String, digest: String, configuration: MLModelConfiguration) throws {
        model = try MLModel(contentsOf: PackagedModel.compiled(resource, digest), configuration: configuration)
    }

    func run(_ inputs: [String: MLFeatureValue]) throws -> MLFeatureProvider {
        try model.prediction(from: MLDictionaryFeatureProvider(dictionary: inputs))
    }

    static func input<Scalar: MLShapedArrayScalar>(_ name: String, _ values: [Scalar], shape: [Int]) throws -> MLFeatureValue {
        let wanted = shape.reduce(1, *)
        guard values.count == wanted else { throw PackagedModelError.size(name: name, wanted: wanted, got: values.count) }
        return MLFeatureValue(multiArray: MLMultiArray(MLShapedArray<Scalar>(scalars: values, shape: shape)))
    }

    /// Pixels, red, green and blue together, or gray: what becomes of them is part of the model.
    static func image(_ name: String, _ pixels: [UInt8], width: Int, height: Int, channels: Int) throws -> MLFeatureValue {
        let wanted = width * height * channels
        guard let buffer = pixelBuffer(Data(pixels), width: width, height: height, channels: channels) else {
            throw PackagedModelError.size(name: name, wanted: wanted, got: pixels.count)
        }
        return MLFeatureValue(pixelBuffer: buffer)
    }

    static func output<Scalar: MLShapedArrayScalar>(_ name: String, _ features: MLFeatureProvider, as type: Scalar.Type) throws -> [Scalar] {
        guard let array = features.featureValue(for: name)?.multiArrayValue else { throw PackagedModelError.output(name: name) }
        return MLShapedArray<Scalar>(converting: array).scalars
    }

    /// The model compiled for this device: once for each version of the package, kept among the app's caches.
    private static func compiled(_ resource: String, _ digest: String) throws -> URL {
        let files = FileManager.default
        let caches = try files.url(for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let kept = caches.appendingPathComponent("\(resource)-\(digest).mlmodelc", isDirectory: true)
        if files.fileExists(atPath: kept.path) {
            return kept
        }
        guard let package = Bundle.module.url(forResource: resource, withExtension: "mlpackage") else {
            throw PackagedModelError.missing(resource: resource)
        }
        let made = try MLModel.compileModel(at: package)
        do {
            try files.moveItem(at: made, to: kept)
        } catch {
            return made
        }
        return kept
    }
}
